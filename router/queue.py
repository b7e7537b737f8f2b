"""TicketQueue: the tickets that no replica has room for yet, in rank order."""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.rank import Rank
from router.heap import LazyHeap
from router.ticket import Ticket


@dataclass(frozen=True, slots=True)
class Entry:
    """A ticket with its place in the order.

    Attributes:
        ticket: the ticket.
        rank: fixed at the first acquire; kept when a replica sends the ticket back.
        since: the router's clock at the first acquire, in seconds.
        returned: it was placed, and a replica sent it back.
    """

    ticket: Ticket
    rank: Rank
    since: float
    returned: bool = False


class TicketQueue:
    """Entries by rank; cancelling one is O(1), putting one in O(log n).

    Attributes:
        hurries: entries that are to be placed within a time.

    Invariant: those are in ``_deadlines``, by when on the router's clock that is over.
    """

    __slots__ = ("_deadlines", "_entries", "_order", "hurries")

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._order: LazyHeap[Rank] = LazyHeap()
        self._deadlines: LazyHeap[tuple[float, int]] = LazyHeap()
        self.hurries = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, ticket_id: object) -> bool:
        return ticket_id in self._entries

    def __iter__(self) -> Iterator[Entry]:
        """All entries, the one that goes first in front; O(n log n)."""
        return (self._entries[ticket_id] for ticket_id in self._order)

    def put(self, entry: Entry) -> None:
        """Add an entry whose ticket is not in the queue."""
        self._entries[entry.ticket.id] = entry
        self._order.put(entry.ticket.id, entry.rank)
        if entry.ticket.start_within_s is not None:
            deadline = entry.since + entry.ticket.start_within_s
            self._deadlines.put(entry.ticket.id, (deadline, entry.rank.serial))
            self.hurries += 1

    def head(self) -> Entry | None:
        """The entry that goes first, or None."""
        ticket_id = self._order.peek()
        return None if ticket_id is None else self._entries[ticket_id]

    def charge(self, tenant: str, priority: int, tokens: int) -> None:
        """Count tokens that a tenant was served at a priority: here the rank alone decides."""

    def take(self, ticket_id: str) -> Entry | None:
        """Remove and return the ticket's entry, or None when it does not wait here."""
        entry = self._entries.pop(ticket_id, None)
        if entry is not None:
            self._order.discard(ticket_id)
            if entry.ticket.start_within_s is not None:
                self._deadlines.discard(ticket_id)
                self.hurries -= 1
        return entry

    def overdue(self, now: float) -> str | None:
        """The ticket of an entry that is not to be placed any more, or None."""
        ticket_id = self._deadlines.peek()
        if ticket_id is None:
            return None
        entry = self._entries[ticket_id]
        return None if entry.since + (entry.ticket.start_within_s or 0.0) > now else ticket_id

    def take_expired(self, now: float) -> Entry | None:
        """Remove and return an entry that is not to be placed any more, or None: O(log n)."""
        ticket_id = self.overdue(now)
        return None if ticket_id is None else self.take(ticket_id)
