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
    forgotten: bool = False  # a router before this one placed it, and nobody has told this one

    @property
    def in_flight(self) -> bool:
        return self.replica is not None and not self.submitted

    @property
    def order(self) -> tuple[int, int]:
        return (self.ticket.arrival - self.ticket.priority * AGING_MS, self.ticket.arrival)
