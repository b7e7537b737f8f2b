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


class TenantBusy(RouterError):
    """The tenant has as many requests under way as it may (HTTP 429).

    Attributes:
        retry_after: seconds after which one of them has probably ended, spread like that of
            `Busy`.
        tenant: its name.
        in_flight: requests that it has under way.
        limit: how many it may have.
    """

    def __init__(self, retry_after: float, tenant: str, in_flight: int, limit: int) -> None:
        super().__init__(retry_after, tenant, in_flight, limit)
        self.retry_after = retry_after
        self.tenant = tenant
        self.in_flight = in_flight
        self.limit = limit

    def __str__(self) -> str:
        return f"tenant {self.tenant!r} has {self.in_flight} of {self.limit} requests under way"


class TenantRate(RouterError):
    """The tenant has used the tokens that it may in a minute (HTTP 429).

    Attributes:
        retry_after: seconds after which it may use as many as this request needs, if it uses
            none in the meantime; spread, but never less than that.
        tenant: its name.
        tokens: tokens that the request needs to begin.
        limit: tokens a minute.
    """

    def __init__(self, retry_after: float, tenant: str, tokens: int, limit: int) -> None:
        super().__init__(retry_after, tenant, tokens, limit)
        self.retry_after = retry_after
        self.tenant = tenant
        self.tokens = tokens
        self.limit = limit

    def __str__(self) -> str:
        return f"tenant {self.tenant!r} has used its {self.limit} tokens a minute"


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


class TooManyTogether(RouterError):
    """The tickets belong together and would not all have places if nobody else had any (HTTP 400).

    Attributes:
        asked: how many they are.
        limit: how many there would be room for at most, on the replicas and in the queue.
    """

    def __init__(self, asked: int, limit: int) -> None:
        super().__init__(asked, limit)
        self.asked = asked
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.asked} places together; there are {self.limit} at most"


class Expired(RouterError):
    """The request was not placed within the time in which it was to start (HTTP 504).

    Attributes:
        waited_s: how long it has waited.
        limit_s: how long it was to wait at most.
    """

    def __init__(self, waited_s: float, limit_s: float) -> None:
        super().__init__(waited_s, limit_s)
        self.waited_s = waited_s
        self.limit_s = limit_s

    def __str__(self) -> str:
        return f"not placed within {self.limit_s:g} s; it has waited {self.waited_s:g} s"


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
