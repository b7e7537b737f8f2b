"""What the router says no with. Every error keeps its fields through pickling."""


class RouterError(Exception):
    """Base of all refusals of the router."""


class Busy(RouterError):
    """The router's queue is full; the caller should come back later (HTTP 429).

    Attributes:
        retry_after: seconds after which a place is likely; differs from call to call, so
            that callers who obey it do not come back together.
        queued: tickets that wait now.
        limit: tickets that may wait.
    """

    def __init__(self, retry_after: float, queued: int, limit: int) -> None:
        super().__init__(retry_after, queued, limit)
        self.retry_after = retry_after
        self.queued = queued
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.queued} of {self.limit} places in the queue are taken"


class NoReplica(RouterError):
    """No replica serves and none is expected (HTTP 503).

    Attributes:
        retry_after: seconds, spread like that of `Busy`.
    """

    def __init__(self, retry_after: float) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after

    def __str__(self) -> str:
        return "no replica is serving"


class NeverFitsAnywhere(RouterError):
    """At its longest the request needs more blocks than any replica has (HTTP 400).

    Attributes:
        blocks: blocks that the request needs at most.
        total: blocks of the largest replica.
    """

    def __init__(self, blocks: int, total: int) -> None:
        super().__init__(blocks, total)
        self.blocks = blocks
        self.total = total

    def __str__(self) -> str:
        return f"the request needs up to {self.blocks} blocks; the largest replica has {self.total}"


class UnknownTicket(RouterError):
    """The router holds no grant for the ticket, so it cannot place it again by its id.

    It happens when the replica was declared lost, or the router restarted, while the
    caller's submit was under way. The caller acquires again, with ``again=True``.

    Attributes:
        ticket: id of the ticket.
    """

    def __init__(self, ticket: str) -> None:
        super().__init__(ticket)
        self.ticket = ticket

    def __str__(self) -> str:
        return f"ticket {self.ticket} has no grant"
