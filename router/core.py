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
from dataclasses import replace
from random import Random

from engine.rank import Rank, rank_of
from router.config import RouterConfig
from router.errors import Busy, UnknownTicket
from router.gauges import Gauges, priority_gauges, replica_gauges, tenant_gauges
from router.placing import Placing
from router.policy import MostFreeBlocks, PlacementPolicy
from router.prefix_match import Fate
from router.queue import Entry
from router.report import Report
from router.ticket import Decision, Lost, No, Refusal, Ticket

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
        placing = self._placing = Placing(config, rng, placement or MostFreeBlocks())
        self._queue, self._ledger = placing.queue, placing.ledger
        self._tenants, self._drain = placing.tenants, placing.drain
        self._limited = bool(config.tenants)  # else nobody is told apart, and nothing counted
        self._serial = 0
        self._bounced = 0
        self._busy = 0

    @property
    def settling(self) -> bool:
        """Whether nothing is placed yet, since the router has just started."""
        return self._placing.settling.on

    def acquire(self, ticket: Ticket) -> list[Decision]:
        """Place the ticket, or queue it: then a later call's decisions name it.

        An id that the router knows already is placed anew, and its old place given up. A caller
        must not let the ticket's release overtake this call.

        Raises:
            NoReplica: no replica is known and none expected.
            NeverFitsAnywhere: no known replica is large enough.
            TooManyTogether: (`acquire_all`) they would not all have places if nobody else had any.
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
        before = self._placing.catch_up(now)
        promised = self._promised(tickets)
        error = self._objection(tickets, promised, now)
        if error is None:
            decisions, entered = self._enter(tickets, promised, now)
            before += decisions
            if entered:
                return before
            error = self._full(len(tickets), now)
        if not before:
            raise error
        return before + [Refusal(ticket.id, error) for ticket in tickets]

    def release(self, ticket_id: str, *, finished: bool = False) -> list[Decision]:
        """Give up a ticket in whatever state it is; an unknown one is no error.

        Args:
            ticket_id: any id.
            finished: the caller has seen the replica end the request (not: asked for its abort),
                so that its blocks are free before a report says so.
        """
        now = self._now()
        waited = self._queue.take(ticket_id)
        ran = waited is None
        if waited is None:
            ran = finished or not self._limited or self._ledger.admitted(ticket_id)
            grant = self._ledger.drop(ticket_id, finished=finished)
            if grant is not None:
                # A cancelled request frees a place too, but says nothing about how long one lasts.
                self._drain.ended(now, grant.age_s(now) if finished else None)
                if not ran:
                    self._placing.unplace(grant)
            else:
                ran = True  # it has ended, or its replica was lost and it goes on elsewhere
        if self._limited:
            self._tenants.drop(ticket_id, now, ran=ran)
        return self._placing.run(now)

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
        refusals = [] if possible else self._placing.refuse_impossible(now)
        return refusals + self._placing.run(now)

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
            return self._placing.run(now)
        replica = self._ledger.holder(ticket_id)
        grant = self._ledger.drop(ticket_id)
        if replica is None or grant is None or grant.entry is None:
            raise UnknownTicket(ticket_id)
        self._bounced += 1
        self._ledger.close(replica)
        self._placing.unplace(grant)
        self._queue.put(replace(grant.entry, returned=True))
        return self._placing.run(now)

    def lost(self, replica: str) -> Lost:
        """Drop a replica that is dead, and its grants; an unknown one is no error."""
        now = self._now()
        tickets = self._ledger.lose(replica)
        refusals = self._placing.refuse_impossible(now)
        return Lost(replica, tickets, refusals + self._placing.run(now))

    def unreachable(self, replica: str) -> Lost:
        """Somebody could not reach the replica: once may be the network's fault, twice is not.

        The first time since its newest report it becomes suspect, and no grant is dropped. Once
        more before it reports again, it is lost.
        """
        if not self._ledger.doubt(replica):
            return self.lost(replica)
        return Lost(replica, (), self._placing.run(self._now()))

    def served(self, tokens: Mapping[tuple[str, int], int]) -> list[Decision]:
        """Count tokens that were generated; that may change whose turn it is.

        Args:
            tokens: by tenant and priority.
        """
        now = self._now()
        for (tenant, priority), amount in tokens.items():
            self._tenants.served(tenant, amount, now)
            self._queue.charge(tenant, priority, amount)
        return self._placing.run(now)

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
        return self._placing.run(now)

    def expect(self, replicas: int) -> list[Decision]:
        """Say how many replicas are meant to be there, whether or not they serve yet.

        While it is above 0, tickets wait for the first replica. At 0 with no replica known, those
        that wait are refused, and new ones meet NoReplica.
        """
        now = self._now()
        self._placing.expecting = replicas
        return self._placing.refuse_impossible(now) + self._placing.run(now)

    def gauges(self) -> Gauges:
        """The state now; O(replicas + queue)."""
        now = self._now()
        waiting = list(self._queue)
        return Gauges(
            queued=len(waiting),
            max_queued=self._config.max_queued,
            oldest_wait_s=max((now - entry.since for entry in waiting), default=0.0),
            expecting=self._placing.expecting,
            placed_total=self._placing.placed,
            bounced_total=self._bounced,
            busy_total=self._busy,
            replicas=tuple(replica_gauges(account, now) for account in self._ledger.accounts()),
            queued_blocks=sum(entry.ticket.blocks_now for entry in waiting),
            settling=self._placing.settling.on,
            by_priority=priority_gauges(waiting, now),
            by_tenant=tenant_gauges(self._tenants, waiting),
            expired_total=self._placing.expired,
            by_prefix=tuple((fate.value, self._ledger.fates[fate]) for fate in Fate),
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

    def _promised(self, tickets: Sequence[Ticket]) -> bool:
        """Whether one of the tickets has, or had, a place: then all of them keep theirs."""
        for ticket in tickets:
            if ticket.again or ticket.id in self._queue or self._ledger.holder(ticket.id):
                return True
        return False

    def _objection(self, tickets: Sequence[Ticket], promised: bool, now: float) -> No | None:
        """Why the tickets may not come in, whatever room there is now."""
        for ticket in tickets:
            error = self._placing.impossible(ticket)
            if error is not None:
                return error
        if promised:
            return None
        placing = self._placing
        if len(tickets) > 1 and (too_many := placing.too_many(tickets)) is not None:
            return too_many
        if not self._limited:
            return None
        return self._tenants.refusal(tickets, now, placing.retry, placing.retry_no_earlier)

    def _enter(
        self, tickets: Sequence[Ticket], promised: bool, now: float
    ) -> tuple[list[Decision], bool]:
        """Let tickets in that may come, unless some would have to wait beyond the queue's limit.

        Returns:
            What was decided in this turn, and whether they are in. If not, nothing is left of
            them and nothing was decided about them, but it may have been about others.
        """
        placing = self._placing
        if placing.settling.on and not promised and self._over(len(tickets)):
            return [], False
        for ticket in tickets:
            if promised:
                placing.forget(ticket)
            if self._limited:
                self._tenants.take(ticket, now)
            self._queue.put(Entry(ticket, self._rank(ticket), now))
        decisions = placing.run(now)
        if promised or not self._over(0) or not any(one.id in self._queue for one in tickets):
            return decisions, True
        for ticket in tickets:
            placing.undo(ticket)
            self._tenants.drop(ticket.id, now, ran=False)
        ids = {ticket.id for ticket in tickets}
        others = [decision for decision in decisions if decision.ticket not in ids]
        return others + placing.run(now), False

    def _over(self, more: int) -> bool:
        """Whether more tickets would be too many for the queue."""
        return len(self._queue) + more > self._config.max_queued

    def _full(self, places: int, now: float) -> Busy:
        """The queue has not so many places left; those who wait go before them."""
        self._busy += 1
        queued = len(self._queue)
        rate = self._drain.rate(now, self._ledger.grants)
        return Busy(self._placing.retry((queued + places) / rate), queued, self._config.max_queued)
