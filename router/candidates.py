"""Candidates: the replicas that would take something, the best of them first."""

from collections.abc import Mapping

from router.account import Account, OrderKey
from router.heap import LazyHeap
from router.ticket import Ticket


class Candidates:
    """Two orders of the same replicas, both by `Account.order`.

    ``_roomy`` holds those that are open and have a free seat, ``_spare`` those that would take
    one more request beyond what fits. `put` after every change of an account keeps them exact,
    so choosing costs the logarithm of their number.
    """

    __slots__ = ("_accounts", "_roomy", "_spare")

    def __init__(self, accounts: Mapping[str, Account]) -> None:
        """Start empty.

        Args:
            accounts: where the accounts of the replicas that are put here are found by name.
        """
        self._accounts = accounts
        self._roomy: LazyHeap[OrderKey] = LazyHeap()
        self._spare: LazyHeap[OrderKey] = LazyHeap()

    def put(self, account: Account) -> None:
        """Add a replica, or take over that its account has changed."""
        name = account.figures.replica
        if not account.open:
            self.discard(name)
            return
        order = account.order
        if account.free_seats > 0:
            self._roomy.put(name, order)
        else:
            self._roomy.discard(name)
        if account.spare:
            self._spare.put(name, order)
        else:
            self._spare.discard(name)

    def discard(self, replica: str) -> None:
        """Remove a replica if it is here."""
        self._roomy.discard(replica)
        self._spare.discard(replica)

    def best(self, ticket: Ticket) -> str | None:
        """Where the ticket fits with most blocks left, else where it would wait, else None.

        The pools of all replicas here are large enough for it.
        """
        name = self._roomy.peek()
        if name is not None and self._accounts[name].free_blocks >= ticket.blocks_now:
            return name
        return self._spare.peek()
