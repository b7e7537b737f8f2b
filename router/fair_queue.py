"""FairQueue: tickets by rank, but tenants take turns among those of one priority.

The counters are those of VTC (Sheng et al., "Fairness in Serving Large Language Models", OSDI
2024): the tenant that was served least goes first, in tokens divided by its weight.
"""

from collections.abc import Mapping
from typing import TypeAlias

from engine.rank import Rank, SchedPolicy
from router.heap import LazyHeap
from router.queue import Entry, TicketQueue
from router.ticket import Ticket

_Lanes: TypeAlias = dict[str, LazyHeap[Rank]]


class FairQueue(TicketQueue):
    """Tickets of several tenants.

    A *level* is what has one priority; under FCFS everything is. Between levels the rank decides
    alone, so aging bounds every wait as without tenants: an entry goes first only if it ranks
    before all entries of all other levels. Among the tenants' oldest entries of the level that
    are so placed, that of the tenant with the least virtual time goes first; then by rank.

    A tenant's virtual time is the tokens that it was served, divided by its weight. Who comes
    back with nothing in the queue is lifted to the least of those who have something there (if
    nobody has, to the one who was there last): idling saves nothing.

    Invariants: each entry is in the lane of its level and tenant; no lane and no level is empty;
    ``_oldest`` has each level by the best rank in it.
    """

    __slots__ = ("_by_level", "_lanes", "_last", "_oldest", "_queued", "_virtual", "_weights")

    def __init__(self, policy: SchedPolicy, weights: Mapping[str, float]) -> None:
        """Start empty, with nobody served yet.

        Args:
            policy: under FCFS priorities make no levels.
            weights: by tenant, > 0; those who are not named have 1.
        """
        super().__init__()
        self._by_level = policy is SchedPolicy.PRIORITY
        self._weights = weights
        self._virtual: dict[str, float] = {}
        self._queued: dict[str, int] = {}  # entries of each tenant that has any
        self._last: str | None = None  # the tenant whose last entry left most recently
        self._lanes: dict[str, _Lanes] = {}
        self._oldest: LazyHeap[Rank] = LazyHeap()

    def put(self, entry: Entry) -> None:
        """Add an entry whose ticket is not in the queue: O(log n + tenants in its level)."""
        super().put(entry)
        ticket, level = entry.ticket, self._level(entry.ticket)
        if ticket.tenant not in self._queued:
            self._lift(ticket.tenant)
        self._queued[ticket.tenant] = self._queued.get(ticket.tenant, 0) + 1
        lanes = self._lanes.setdefault(level, {})
        if ticket.tenant not in lanes:
            lanes[ticket.tenant] = LazyHeap()
        lanes[ticket.tenant].put(ticket.id, entry.rank)
        self._oldest.put(level, min(first.rank for first in self._firsts(lanes)))

    def take(self, ticket_id: str) -> Entry | None:
        """Remove and return the ticket's entry, or None: O(log n + tenants in its level)."""
        entry = super().take(ticket_id)
        if entry is None:
            return None
        tenant, level = entry.ticket.tenant, self._level(entry.ticket)
        self._queued[tenant] -= 1
        if not self._queued[tenant]:
            del self._queued[tenant]
            self._last = tenant
        lanes = self._lanes[level]
        lanes[tenant].discard(ticket_id)
        if not lanes[tenant]:
            del lanes[tenant]
        if lanes:
            self._oldest.put(level, min(first.rank for first in self._firsts(lanes)))
        else:
            del self._lanes[level]
            self._oldest.discard(level)
        return entry

    def head(self) -> Entry | None:
        """The entry that goes first, or None: O(log n + tenants in its level)."""
        level = self._oldest.peek()
        if level is None:
            return None
        firsts = self._firsts(self._lanes[level])
        if len(firsts) > 1 and len(self._lanes) > 1:
            bound = self._best_of_others(level, min(first.rank for first in firsts))
            firsts = [first for first in firsts if first.rank < bound]
        return min(firsts, key=lambda first: (self.virtual(first.ticket.tenant), first.rank))

    def charge(self, tenant: str, tokens: int) -> None:
        """Count tokens that a tenant was served; negative ones take that back."""
        served = tokens / self._weights.get(tenant, 1.0)
        self._virtual[tenant] = self.virtual(tenant) + served

    def virtual(self, tenant: str) -> float:
        """The tenant's virtual time."""
        return self._virtual.get(tenant, 0.0)

    def _lift(self, tenant: str) -> None:
        active = [self.virtual(one) for one in self._queued]
        if not active and self._last is not None:
            active = [self.virtual(self._last)]
        if active:
            self._virtual[tenant] = max(self.virtual(tenant), min(active))

    def _firsts(self, lanes: _Lanes) -> list[Entry]:
        """Each tenant's oldest entry in a level."""
        return [
            self._entries[first] for lane in lanes.values() if (first := lane.peek()) is not None
        ]

    def _best_of_others(self, level: str, rank: Rank) -> Rank:
        """The best rank outside the level, of which ``rank`` is the best; there is one."""
        self._oldest.discard(level)
        other = self._oldest.peek()
        self._oldest.put(level, rank)
        assert other is not None
        return min(first.rank for first in self._firsts(self._lanes[other]))

    def _level(self, ticket: Ticket) -> str:
        return str(ticket.priority) if self._by_level else ""
