"""RouterCore: decides which replica a request goes to, or that it waits, or that it may not.

Synchronous, single-threaded, and deterministic given its clock and random numbers. It decides and
charges in one turn, so any number of requests between two reports spread by what each replica
really has left, instead of herding onto the one that looked best in the last report.

Every method that changes something returns the decisions it made possible, in order; the caller
hands them to whoever waits. After each of them this holds: the ticket that goes first in the queue
is one that no replica takes now, and nobody passes it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from engine.rank import Rank, SchedPolicy, rank_of
from router.drain import Drain, spread
from router.errors import Busy, NeverFitsAnywhere, NoReplica, UnknownTicket
from router.gauges import Gauges, replica_gauges
from router.ledger import Ledger
from router.policy import MostFreeBlocks, PlacementPolicy
from router.queue import Entry, TicketQueue
from router.report import Report
from router.ticket import Decision, Lost, Placement, Refusal, Ticket


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """How a router behaves.

    Attributes:
        policy: how tickets are ordered.
        aging_ms: ms of waiting that one level of priority is worth, >= 0.
        lookahead: requests beyond what fits that may be placed on one replica, so that it need
            not wait for a message to start the next; 0 binds strictly late.
        max_queued: tickets that may wait, >= 0.
        expecting: replicas that are meant to be there; see `RouterCore.expect`.
        suspect_after_s: a replica silent for longer is marked in the gauges.
        retry_min_s, retry_max_s: limits of every Retry-After.
        no_replica_retry_s: about when to come back while no replica serves.

    Raises:
        ValueError: for a value out of range.
    """

    policy: SchedPolicy = SchedPolicy.PRIORITY
    aging_ms: int = 5_000
    lookahead: int = 2
    max_queued: int = 256
    expecting: int = 0
    suspect_after_s: float = 2.0
    retry_min_s: float = 1.0
    retry_max_s: float = 60.0
    no_replica_retry_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("aging_ms", "lookahead", "max_queued", "expecting"):
            value = getattr(self, name)
            if value < 0:
                raise ValueError(f"{name} {value} is negative")
        if not 0 < self.retry_min_s <= self.retry_max_s:
            raise ValueError(f"retry_min_s {self.retry_min_s}, retry_max_s {self.retry_max_s}")


class RouterCore:
    """The queue in front of the replicas and the ledger of what they have left."""

    def __init__(
        self,
        config: RouterConfig,
        clock: Callable[[], float],
        rng: Random,
        placement: PlacementPolicy | None = None,
    ) -> None:
        """Start with no replica; the first report of each registers it.

        Args:
            config: how it behaves.
            clock: seconds, from any origin, never going back.
            rng: spreads the Retry-After values.
            placement: chooses among replicas; by default the one with most free blocks.
        """
        self._config = config
        self._clock = clock
        self._rng = rng
        self._placement = placement or MostFreeBlocks()
        self._ledger = Ledger(config.lookahead)
        self._queue = TicketQueue()
        self._drain = Drain()
        self._expecting = config.expecting
        self._serial = 0
        self._placed = 0
        self._bounced = 0
        self._busy = 0

    def acquire(self, ticket: Ticket) -> list[Decision]:
        """Place the ticket, or queue it: then a later call's decisions name it.

        An id that the router knows already is placed anew, and its old place given up. A caller
        must not let the ticket's release overtake this call.

        Raises:
            NoReplica: no replica is known and none expected.
            NeverFitsAnywhere: no known replica is large enough.
            Busy: it would have to wait and the queue is full, whoever waits there. A more urgent
                newcomer does not push anybody out: who waits has been promised a place.
        """
        error = self._impossible(ticket)
        if error is not None:
            raise error
        now = self._clock()
        entry = Entry(ticket, self._rank(ticket), now)
        full = len(self._queue) >= self._config.max_queued
        if full and not self._promised(ticket) and self._waits(entry):
            raise self._too_many(now)
        self._queue.take(ticket.id)
        self._ledger.drop(ticket.id)
        self._queue.put(entry)
        return self._place(now)

    def release(self, ticket_id: str, *, finished: bool = False) -> list[Decision]:
        """Give up a ticket in whatever state it is; an unknown one is no error.

        Args:
            ticket_id: any id.
            finished: the caller has seen the replica end the request (not: asked for its abort),
                so that its blocks are free before a report says so.
        """
        now = self._clock()
        if self._queue.take(ticket_id) is None:
            grant = self._ledger.drop(ticket_id, finished=finished)
            if grant is not None:
                # A cancelled request frees a place too, but says nothing about how long one lasts.
                self._drain.ended(now, grant.age_s(now) if finished else None)
        return self._place(now)

    def report(self, report: Report) -> list[Decision]:
        """Enter what a replica says about itself; a replica's first report registers it.

        Reports may come late, twice or in any order. Those of a replica that was lost are
        ignored until it sends a full one (`wants_full_report`).
        """
        now = self._clock()
        replicas, largest = len(self._ledger), self._ledger.largest
        for grant in self._ledger.apply(report, now, self._queue):
            self._drain.ended(now, grant.age_s(now))
        possible = replicas > 0 and self._ledger.largest >= largest
        refusals = [] if possible else self._refuse_impossible()
        return refusals + self._place(now)

    def wants_full_report(self, replica: str) -> bool:
        """Whether the replica's next report should carry all it holds.

        True when the replica is not known (the router or the replica restarted, or the replica
        was declared lost but lives) and when one of its reports never came.
        """
        return self._ledger.wants_full_report(replica)

    def bounced(self, ticket_id: str) -> list[Decision]:
        """Its replica answered QueueFull: close the replica until its next report, place again.

        The ticket keeps its place in the order and never meets Busy.

        Raises:
            UnknownTicket: it has no grant; acquire it again.
        """
        if ticket_id in self._queue:
            return []
        replica = self._ledger.holder(ticket_id)
        grant = self._ledger.drop(ticket_id)
        if replica is None or grant is None or grant.entry is None:
            raise UnknownTicket(ticket_id)
        self._bounced += 1
        self._ledger.close(replica)
        self._queue.put(grant.entry)
        return self._place(self._clock())

    def lost(self, replica: str) -> Lost:
        """Drop a replica that is dead, and its grants; an unknown one is no error."""
        tickets = self._ledger.lose(replica)
        refusals = self._refuse_impossible()
        return Lost(replica, tickets, refusals + self._place(self._clock()))

    def expect(self, replicas: int) -> list[Decision]:
        """Say how many replicas are meant to be there, whether or not they serve yet.

        While it is above 0, tickets wait for the first replica. At 0 with no replica known, those
        that wait are refused, and new ones meet NoReplica.
        """
        self._expecting = replicas
        return self._refuse_impossible()

    def gauges(self) -> Gauges:
        """The state now; O(replicas + queue)."""
        now = self._clock()
        limit = self._config.suspect_after_s
        return Gauges(
            queued=len(self._queue),
            max_queued=self._config.max_queued,
            oldest_wait_s=max((now - entry.since for entry in self._queue), default=0.0),
            expecting=self._expecting,
            placed_total=self._placed,
            bounced_total=self._bounced,
            busy_total=self._busy,
            replicas=tuple(replica_gauges(a, now, limit) for a in self._ledger.accounts()),
        )

    def _rank(self, ticket: Ticket) -> Rank:
        self._serial += 1
        config = self._config
        return rank_of(
            config.policy, config.aging_ms, ticket.priority, ticket.arrival, self._serial
        )

    def _promised(self, ticket: Ticket) -> bool:
        """Whether the ticket has, or had, a place."""
        known = ticket.id in self._queue or self._ledger.holder(ticket.id) is not None
        return ticket.again or known

    def _waits(self, entry: Entry) -> bool:
        """Whether the newcomer could not be placed at once."""
        head = self._queue.head()
        if head is not None and head.rank < entry.rank:
            return True
        return self._placement.choose(entry.ticket, self._ledger) is None

    def _place(self, now: float) -> list[Decision]:
        """Place from the front of the queue until the first that no replica takes."""
        decisions: list[Decision] = []
        while (entry := self._queue.head()) is not None:
            replica = self._placement.choose(entry.ticket, self._ledger)
            if replica is None:
                break
            self._queue.take(entry.ticket.id)
            self._ledger.grant(entry, replica, now)
            self._placed += 1
            decisions.append(Placement(entry.ticket.id, replica))
        self._drain.observe_queue(now, len(self._queue))
        return decisions

    def _impossible(self, ticket: Ticket) -> NoReplica | NeverFitsAnywhere | None:
        if not len(self._ledger):
            if self._expecting:
                return None
            return NoReplica(self._retry(self._config.no_replica_retry_s))
        if ticket.blocks_max > self._ledger.largest:
            return NeverFitsAnywhere(ticket.blocks_max, self._ledger.largest)
        return None

    def _refuse_impossible(self) -> list[Decision]:
        """Take out of the queue what can no longer be placed; it would block the rest for ever."""
        refusals: list[Decision] = []
        for entry in list(self._queue):
            error = self._impossible(entry.ticket)
            if error is not None:
                self._queue.take(entry.ticket.id)
                refusals.append(Refusal(entry.ticket.id, error))
        return refusals

    def _too_many(self, now: float) -> Busy:
        self._busy += 1
        queued = len(self._queue)
        rate = self._drain.rate(now, self._ledger.grants)
        return Busy(self._retry((queued + 1) / rate), queued, self._config.max_queued)

    def _retry(self, seconds: float) -> float:
        config = self._config
        return spread(seconds, config.retry_min_s, config.retry_max_s, self._rng)
