"""RouterCore: decides which replica a request goes to, or that it waits, or that it may not.

Synchronous, single-threaded, and deterministic given its clock and random numbers. It decides and
charges in one turn, so any number of requests between two reports spread by what each replica
really has left, instead of herding onto the one that looked best in the last report.

Every method that changes something returns the decisions it made possible, in order; the caller
hands them to whoever waits. After each of them this holds, except while the router settles after
its start: the ticket that goes first in the queue (`router.queue`, `router.fair_queue`) is one
that no replica takes now, nobody passes it, and nobody in the queue was to be placed before now.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from engine.rank import Rank, SchedPolicy, rank_of
from router.config import RouterConfig
from router.drain import Drain, no_earlier, spread
from router.errors import Busy, Expired, NeverFitsAnywhere, NoReplica, UnknownTicket
from router.fair_queue import FairQueue
from router.gauges import Gauges, priority_gauges, replica_gauges, tenant_gauges
from router.ledger import Ledger
from router.policy import MostFreeBlocks, PlacementPolicy
from router.preempting import where_it_preempts
from router.queue import Entry, TicketQueue
from router.report import Report
from router.settling import Settling
from router.silence import Silence
from router.tenants import Tenants
from router.ticket import Decision, Lost, No, Placement, Refusal, Ticket

__all__ = ["RouterConfig", "RouterCore"]


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
        self._ledger = Ledger(
            config.lookahead, Silence(config.suspect_after_s, config.lost_after_s)
        )
        self._tenants = Tenants(config.tenants)
        self._queue = TicketQueue()
        if config.fair_tenants and config.tenants:
            self._queue = FairQueue(config.policy, {one.name: one.weight for one in config.tenants})
        self._settling = Settling(config.settle_s)
        self._drain = Drain()
        self._expecting = config.expecting
        self._serial = 0
        self._placed = 0
        self._bounced = 0
        self._busy = 0
        self._expired = 0

    @property
    def settling(self) -> bool:
        """Whether nothing is placed yet, since the router has just started."""
        return self._settling.on

    def acquire(self, ticket: Ticket) -> list[Decision]:
        """Place the ticket, or queue it: then a later call's decisions name it.

        An id that the router knows already is placed anew, and its old place given up. A caller
        must not let the ticket's release overtake this call.

        Raises:
            NoReplica: no replica is known and none expected.
            NeverFitsAnywhere: no known replica is large enough.
            TenantBusy, TenantRate: its tenant has reached a limit.
            Busy: it would have to wait and the queue is full, whoever waits there. A more urgent
                newcomer does not push anybody out: who waits has been promised a place.

        Should others have been decided about in the same turn, then none of these is raised: it
        comes as one more decision.
        """
        return self.acquire_all((ticket,))

    def acquire_all(self, tickets: Sequence[Ticket]) -> list[Decision]:
        """Place or queue tickets that belong together: all of them or, with an error, none.

        Args:
            tickets: at least one, all of one tenant and, if several, of one `Ticket.call`.

        Raises:
            See `acquire`. At the limit of the queue, those of them that can go at once need no
            place in it.
        """
        now = self._now()
        promised = any(self._promised(ticket) for ticket in tickets)
        error = self._objection(tickets, promised, now)
        if error is None:
            decisions, entered = self._enter(tickets, promised, now)
            if entered:
                return decisions
            error = self._too_many(now)
        else:
            decisions = self._place(now)
        if not decisions:
            raise error
        return decisions + [Refusal(ticket.id, error) for ticket in tickets]

    def release(self, ticket_id: str, *, finished: bool = False) -> list[Decision]:
        """Give up a ticket in whatever state it is; an unknown one is no error.

        Args:
            ticket_id: any id.
            finished: the caller has seen the replica end the request (not: asked for its abort),
                so that its blocks are free before a report says so.
        """
        now = self._now()
        waited = self._queue.take(ticket_id)
        self._tenants.drop(ticket_id, now, unused=0 if waited is None else waited.ticket.cost)
        if waited is None:
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
        now = self._now()
        replicas, largest = len(self._ledger), self._ledger.largest
        for grant in self._ledger.apply(report, now, self._queue):
            self._drain.ended(now, grant.age_s(now))
        possible = replicas > 0 and self._ledger.largest >= largest
        refusals = [] if possible else self._refuse_impossible(now)
        return refusals + self._place(now)

    def knows(self, replica: str) -> bool:
        """Whether the replica has reported and is not lost."""
        return replica in self._ledger

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
        now = self._now()
        if ticket_id in self._queue:
            return self._place(now)
        replica = self._ledger.holder(ticket_id)
        grant = self._ledger.drop(ticket_id)
        if replica is None or grant is None or grant.entry is None:
            raise UnknownTicket(ticket_id)
        self._bounced += 1
        self._ledger.close(replica)
        self._queue.charge(grant.entry.ticket.tenant, -grant.entry.ticket.cost)
        self._queue.put(grant.entry)
        return self._place(now)

    def lost(self, replica: str) -> Lost:
        """Drop a replica that is dead, and its grants; an unknown one is no error."""
        now = self._now()
        tickets = self._ledger.lose(replica)
        refusals = self._refuse_impossible(now)
        return Lost(replica, tickets, refusals + self._place(now))

    def unreachable(self, replica: str) -> Lost:
        """Somebody could not reach the replica: once may be the network's fault, twice is not.

        The first time since its newest report it becomes suspect, and no grant is dropped. Once
        more before it reports again, it is lost.
        """
        if not self._ledger.doubt(replica):
            return self.lost(replica)
        return Lost(replica, (), self._place(self._now()))

    def served(self, tokens: Mapping[str, int]) -> list[Decision]:
        """Count tokens that were generated, by tenant; that may change whose turn it is."""
        now = self._now()
        self._tenants.served(tokens, now)
        for tenant, amount in tokens.items():
            self._queue.charge(tenant, amount)
        return self._place(now)

    def remember(self, tickets: Sequence[Ticket]) -> None:
        """Count as under way what a router before this one let in, until it is released."""
        now = self._now()
        for ticket in tickets:
            self._tenants.take(ticket, now, charge=False)

    def silent(self) -> tuple[str, ...]:
        """The replicas that have not reported for ``lost_after_s``; the owner calls `lost`.

        A sleep of the router itself does not count: see `router.silence`.
        """
        return self._ledger.silent(self._now())

    def tick(self) -> list[Decision]:
        """Let time have its effects although nothing happens; to be called about once a second."""
        now = self._now()
        self._ledger.tick(now)
        return self._place(now)

    def expect(self, replicas: int) -> list[Decision]:
        """Say how many replicas are meant to be there, whether or not they serve yet.

        While it is above 0, tickets wait for the first replica. At 0 with no replica known, those
        that wait are refused, and new ones meet NoReplica.
        """
        now = self._now()
        self._expecting = replicas
        return self._refuse_impossible(now) + self._place(now)

    def gauges(self) -> Gauges:
        """The state now; O(replicas + queue)."""
        now = self._now()
        waiting = list(self._queue)
        return Gauges(
            queued=len(waiting),
            max_queued=self._config.max_queued,
            oldest_wait_s=max((now - entry.since for entry in waiting), default=0.0),
            expecting=self._expecting,
            placed_total=self._placed,
            bounced_total=self._bounced,
            busy_total=self._busy,
            replicas=tuple(replica_gauges(account, now) for account in self._ledger.accounts()),
            queued_blocks=sum(entry.ticket.blocks_now for entry in waiting),
            settling=self._settling.on,
            by_priority=priority_gauges(waiting, now),
            by_tenant=tenant_gauges(self._tenants, self._queue),
            expired_total=self._expired,
        )

    def _now(self) -> float:
        """Read the clock, at the beginning of a turn, and let the ledger know."""
        now = self._clock()
        self._ledger.pass_time(now)
        return now

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

    def _objection(self, tickets: Sequence[Ticket], promised: bool, now: float) -> No | None:
        """Why not even the first of the tickets may come in, whatever room there is."""
        for ticket in tickets:
            error = self._impossible(ticket)
            if error is not None:
                return error
        if promised:
            return None
        return self._tenants.refusal(tickets, now, self._retry, self._retry_no_earlier)

    def _enter(
        self, tickets: Sequence[Ticket], promised: bool, now: float
    ) -> tuple[list[Decision], bool]:
        """Let tickets in that may come, unless some would have to wait beyond the queue's limit.

        Returns:
            What was decided in this turn, and whether they are in. If not, nothing is left of
            them and nothing was decided about them, but it may have been about others.
        """
        if self._settling.on and not promised and self._over(len(tickets)):
            return self._place(now), False
        for ticket in tickets:
            self._forget(ticket)
            self._tenants.take(ticket, now)
            self._queue.put(Entry(ticket, self._rank(ticket), now))
        decisions = self._place(now)
        if promised or not self._over(0) or not any(one.id in self._queue for one in tickets):
            return decisions, True
        for ticket in tickets:
            self._placed -= self._forget(ticket)
            self._tenants.drop(ticket.id, now, unused=ticket.cost)
        ids = {ticket.id for ticket in tickets}
        others = [decision for decision in decisions if decision.ticket not in ids]
        return others + self._place(now), False

    def _over(self, more: int) -> bool:
        """Whether more tickets would be too many for the queue."""
        return len(self._queue) + more > self._config.max_queued

    def _forget(self, ticket: Ticket) -> bool:
        """Undo what became of the ticket in the queue or on a replica; say whether on one."""
        if self._queue.take(ticket.id) is not None:
            return False
        grant = self._ledger.drop(ticket.id)
        if grant is None:
            return False
        if grant.entry is not None:
            self._queue.charge(ticket.tenant, -grant.entry.ticket.cost)
        return True

    def _place(self, now: float) -> list[Decision]:
        """Place from the front of the queue until the first that no replica takes.

        One that only some of the replicas suit does not wait: it is refused. So is one whose
        time is over.
        """
        decisions = self._refuse_expired(now)
        if self._settling.on and self._settling.ends(now, self._ledger, self._expecting):
            decisions += self._refuse_impossible(now)
        while not self._settling.on and (entry := self._queue.head()) is not None:
            replica = self._placement.choose(entry.ticket, self._ledger)
            preempting = replica is None
            if replica is None:
                replica = self._where_it_preempts(entry)
            if replica is None and not self._holds_up_others(entry.ticket):
                break
            self._queue.take(entry.ticket.id)
            if replica is None:
                decisions.append(self._refuse(entry, self._no_replica(), now))
                continue
            self._ledger.grant(entry, replica, now, preempting=preempting)
            self._queue.charge(entry.ticket.tenant, entry.ticket.cost)
            self._placed += 1
            decisions.append(Placement(entry.ticket.id, replica))
        self._drain.observe_queue(now, len(self._queue))
        return decisions

    def _holds_up_others(self, ticket: Ticket) -> bool:
        """Whether others could be placed past the ticket, since it needs a kind of replica."""
        return bool(ticket.kind) and self._ledger.has_others(ticket.kind)

    def _where_it_preempts(self, entry: Entry) -> str | None:
        levels = self._config.admission_preemption
        if not levels or self._config.policy is SchedPolicy.FCFS:
            return None
        return where_it_preempts(entry, self._ledger.accounts(), levels)

    def _impossible(self, ticket: Ticket) -> NoReplica | NeverFitsAnywhere | None:
        if not len(self._ledger):
            if self._expecting:
                return None
            return self._no_replica()
        if self._settling.on:
            return None  # a larger replica may report yet
        if ticket.blocks_max > self._ledger.largest:
            return NeverFitsAnywhere(ticket.blocks_max, self._ledger.largest)
        return None

    def _refuse_impossible(self, now: float) -> list[Decision]:
        """Take out of the queue what can no longer be placed; it would block the rest for ever."""
        refusals: list[Decision] = []
        for entry in list(self._queue):
            error = self._impossible(entry.ticket)
            if error is not None:
                self._queue.take(entry.ticket.id)
                refusals.append(self._refuse(entry, error, now))
        return refusals

    def _refuse_expired(self, now: float) -> list[Decision]:
        """Take out of the queue what was to be placed before now; O(1) if nothing was."""
        refusals: list[Decision] = []
        while (entry := self._queue.take_expired(now)) is not None:
            self._expired += 1
            error = Expired(now - entry.since, entry.ticket.start_within_s or 0.0)
            refusals.append(self._refuse(entry, error, now))
        return refusals

    def _refuse(self, entry: Entry, error: No, now: float) -> Decision:
        """Turn away what has just left the queue: its tenant gets back what it has not used."""
        self._tenants.drop(entry.ticket.id, now, unused=entry.ticket.cost)
        return Refusal(entry.ticket.id, error)

    def _too_many(self, now: float) -> Busy:
        self._busy += 1
        queued = len(self._queue)
        rate = self._drain.rate(now, self._ledger.grants)
        return Busy(self._retry((queued + 1) / rate), queued, self._config.max_queued)

    def _no_replica(self) -> NoReplica:
        return NoReplica(self._retry(self._config.no_replica_retry_s))

    def _retry(self, seconds: float) -> float:
        config = self._config
        return spread(seconds, config.retry_min_s, config.retry_max_s, self._rng)

    def _retry_no_earlier(self, seconds: float) -> float:
        return no_earlier(seconds, self._config.retry_min_s, self._rng)
