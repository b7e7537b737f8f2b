"""Where a request goes: the ledger, the placement policies and the queue."""
