"""Life: what really became of a ticket."""

from dataclasses import dataclass

from router.ticket import Ticket

AGING_MS = 1_000


@dataclass
class Life:
    """A ticket as its gateway knows it."""

    ticket: Ticket
    replica: str | None = None  # None: it waits in the router
    submitted: bool = False
    ended: bool = False
    preempting: bool = False  # placed where it will preempt
    since: float = 0.0  # when it was first asked for
    forgotten: bool = False  # a router before this one placed it, and nobody has told this one

    @property
    def in_flight(self) -> bool:
        return self.replica is not None and not self.submitted

    def passes(self, other: "Life") -> bool:
        """Whether it may be placed although the other goes before it: tenants take turns."""
        if self.ticket.priority != other.ticket.priority:
            return False
        return self.ticket.tenant != other.ticket.tenant

    def expired(self, now: float) -> bool:
        """Whether it is not to be placed any more."""
        within = self.ticket.start_within_s
        return within is not None and now >= self.since + within

    @property
    def order(self) -> tuple[int, int]:
        return (self.ticket.arrival - self.ticket.priority * AGING_MS, self.ticket.arrival)
