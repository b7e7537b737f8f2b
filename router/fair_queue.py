"""FairQueue: tickets by rank, but tenants take turns among those of one priority.

The counters are those of VTC (Sheng et al., "Fairness in Serving Large Language Models", OSDI
2024): the tenant that was served least goes first, in tokens divided by its weight.
"""

from collections.abc import Mapping
from typing import Final

from engine.rank import Rank, SchedPolicy
from router.heap import LazyHeap
from router.queue import Entry, TicketQueue

_EMPTY_LEVELS: Final = 64
"""So many levels are remembered in which nobody waits."""


class _Level:
    """Those of one priority that wait, and what tenants were served of it.

    Attributes:
        lanes: the entries of each tenant that has any here, by rank.
        virtual: each tenant's virtual time here.
        last: the tenant whose last entry here left most recently.
    """

    __slots__ = ("lanes", "last", "virtual")

    def __init__(self) -> None:
        self.lanes: dict[str, LazyHeap[Rank]] = {}
        self.virtual: dict[str, float] = {}
        self.last: str | None = None

    def lane(self, tenant: str) -> LazyHeap[Rank]:
        """The tenant's lane. If it had none, it is lifted to the least virtual time of the others.

        If nobody else waits, to that of the one who waited last.
        """
        lane = self.lanes.get(tenant)
        if lane is None:
            here = self.lanes or ([] if self.last is None else [self.last])
            least = min((self.virtual.get(one, 0.0) for one in here), default=0.0)
            self.virtual[tenant] = max(self.virtual.get(tenant, 0.0), least)
            lane = self.lanes[tenant] = LazyHeap()
        return lane

    def discard(self, tenant: str, ticket_id: str) -> None:
        """Take a ticket out of its tenant's lane, where it is."""
        lane = self.lanes[tenant]
        lane.discard(ticket_id)
        if not lane:
            del self.lanes[tenant]
            self.last = tenant


class FairQueue(TicketQueue):
    """Tickets of several tenants.

    A *level* is what has one priority; under FCFS everything is. Between levels the rank decides
    alone, so aging bounds every wait as without tenants: an entry goes first only if it ranks
    before all entries of all other levels. Among the tenants' oldest entries of the level that
    are so placed, that of the tenant with the least virtual time goes first; then by rank.

    A tenant's virtual time is the tokens that it was served, divided by its weight. Each level has
    its own: what a tenant is served at one priority is neither held against it nor saved up at
    another. Who comes to a level with nothing waiting there is lifted to the least of those who
    have (if nobody has, to the one who was there last): idling saves nothing, and nor does what
    is left waiting at other priorities.

    Invariants: each entry is in the lane of its level and tenant; no lane is empty; ``_oldest``
    has each level that has lanes, by the best rank in it; ``_empty`` has the other levels, the one
    that was longest without lanes first.
    """

    __slots__ = ("_by_level", "_empty", "_levels", "_oldest", "_weights")

    def __init__(self, policy: SchedPolicy, weights: Mapping[str, float]) -> None:
        """Start empty, with nobody served yet.

        Args:
            policy: under FCFS priorities make no levels.
            weights: by tenant, > 0; those who are not named have 1.
        """
        super().__init__()
        self._by_level = policy is SchedPolicy.PRIORITY
        self._weights = weights
        self._levels: dict[str, _Level] = {}
        self._empty: dict[str, None] = {}
        self._oldest: LazyHeap[Rank] = LazyHeap()

    def put(self, entry: Entry) -> None:
        """Add an entry whose ticket is not in the queue: O(log n + tenants in its level)."""
        super().put(entry)
        ticket, name = entry.ticket, self._level(entry.ticket.priority)
        level = self._levels.setdefault(name, _Level())
        self._empty.pop(name, None)
        level.lane(ticket.tenant).put(ticket.id, entry.rank)
        self._oldest.put(name, min(first.rank for first in self._firsts(level)))

    def take(self, ticket_id: str) -> Entry | None:
        """Remove and return the ticket's entry, or None: O(log n + tenants in its level)."""
        entry = super().take(ticket_id)
        if entry is None:
            return None
        name = self._level(entry.ticket.priority)
        level = self._levels[name]
        level.discard(entry.ticket.tenant, ticket_id)
        if level.lanes:
            self._oldest.put(name, min(first.rank for first in self._firsts(level)))
        else:
            self._oldest.discard(name)
            self._leave_empty(name)
        return entry

    def head(self) -> Entry | None:
        """The entry that goes first, or None: O(log n + tenants in its level)."""
        name = self._oldest.peek()
        if name is None:
            return None
        level = self._levels[name]
        firsts = self._firsts(level)
        if len(firsts) > 1 and len(self._oldest) > 1:
            bound = self._best_of_others(name, min(first.rank for first in firsts))
            firsts = [first for first in firsts if first.rank < bound]
        return min(firsts, key=lambda first: (level.virtual[first.ticket.tenant], first.rank))

    def charge(self, tenant: str, priority: int, tokens: int) -> None:
        """Count tokens that a tenant was served at a priority; negative ones take that back."""
        name = self._level(priority)
        if name not in self._levels:
            self._levels[name] = _Level()
            self._leave_empty(name)
        virtual = self._levels[name].virtual
        virtual[tenant] = virtual.get(tenant, 0.0) + tokens / self._weights.get(tenant, 1.0)

    def virtual(self, tenant: str, priority: int) -> float:
        """The tenant's virtual time at a priority."""
        level = self._levels.get(self._level(priority))
        return 0.0 if level is None else level.virtual.get(tenant, 0.0)

    def _leave_empty(self, name: str) -> None:
        """Nobody waits in the level; forget the one in which nobody has waited for longest."""
        self._empty[name] = None
        if len(self._empty) > _EMPTY_LEVELS:
            oldest = next(iter(self._empty))
            del self._empty[oldest], self._levels[oldest]

    def _firsts(self, level: _Level) -> list[Entry]:
        """Each tenant's oldest entry in a level."""
        return [
            self._entries[first]
            for lane in level.lanes.values()
            if (first := lane.peek()) is not None
        ]

    def _best_of_others(self, name: str, rank: Rank) -> Rank:
        """The best rank outside the level, of which ``rank`` is the best; there is one."""
        self._oldest.discard(name)
        other = self._oldest.peek()
        self._oldest.put(name, rank)
        assert other is not None
        return min(first.rank for first in self._firsts(self._levels[other]))

    def _level(self, priority: int) -> str:
        return str(priority) if self._by_level else ""
