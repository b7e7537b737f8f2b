"""Placing: the queue, the ledger, and what goes from one to the other in a turn."""

from collections.abc import Sequence
from random import Random

from engine.rank import SchedPolicy
from router.account import Grant
from router.config import RouterConfig
from router.drain import Drain, no_earlier, spread
from router.errors import Expired, NeverFitsAnywhere, NoReplica, TooManyTogether
from router.fair_queue import FairQueue
from router.ledger import Ledger
from router.policy import PlacementPolicy
from router.preempting import where_it_preempts
from router.queue import Entry, TicketQueue
from router.settling import Settling
from router.silence import Silence
from router.tenants import Tenants
from router.ticket import Decision, No, Placement, Refusal, Ticket


class Placing:
    """Places those who wait, from the front of the queue, and turns away who cannot be placed.

    `router.core.RouterCore` changes the queue and the ledger and then calls `run`, once a turn.

    Attributes:
        queue: tickets that wait.
        ledger: tickets that were placed.
        tenants: the limits; `run` drops there whom it turns away.
        drain: how fast places come free.
        settling: whether nothing is placed yet.
        expecting: replicas that are meant to be there.
        placed, expired: how many were placed, and turned away since their time was over.
    """

    __slots__ = (
        "_config",
        "_placement",
        "_rng",
        "drain",
        "expecting",
        "expired",
        "ledger",
        "placed",
        "queue",
        "settling",
        "tenants",
    )

    def __init__(self, config: RouterConfig, rng: Random, placement: PlacementPolicy) -> None:
        """Start with nobody; see `router.core.RouterCore`."""
        self._config = config
        self._rng = rng
        self._placement = placement
        silence = Silence(config.suspect_after_s, config.lost_after_s)
        self.ledger = Ledger(config.lookahead, silence)
        self.queue = TicketQueue()
        if config.fair_tenants and config.tenants:
            self.queue = FairQueue(config.policy, {one.name: one.weight for one in config.tenants})
        self.tenants = Tenants(config.tenants)
        self.drain = Drain()
        self.settling = Settling(config.settle_s)
        self.expecting = config.expecting
        self.placed = 0
        self.expired = 0

    def forget(self, ticket: Ticket) -> Grant | None:
        """Give up the ticket's place in the queue or on a replica; return what it had there."""
        if self.queue.take(ticket.id) is not None:
            return None
        grant = self.ledger.drop(ticket.id)
        if grant is not None:
            self.unplace(grant)
        return grant

    def undo(self, ticket: Ticket) -> None:
        """Make it as if the ticket, which came in this turn, had not come."""
        grant = self.forget(ticket)
        if grant is not None:
            self.placed -= 1
            if grant.fate is not None:
                self.ledger.fates[grant.fate] -= 1

    def unplace(self, grant: Grant) -> None:
        """Take back the charge for a placement that came to nothing."""
        if grant.entry is not None:
            ticket = grant.entry.ticket
            self.queue.charge(ticket.tenant, ticket.priority, -ticket.cost)

    def catch_up(self, now: float) -> list[Decision]:
        """Decide what time alone has changed, so that who comes now comes after it."""
        if self.settling.on or (self.queue.hurries and self.queue.overdue(now)):
            return self.run(now)
        return []

    def run(self, now: float) -> list[Decision]:
        """Place from the front of the queue until the first that no replica takes.

        One that only some of the replicas suit does not wait: it is refused. So is one whose
        time is over.
        """
        queue, ledger, settling = self.queue, self.ledger, self.settling
        decisions = self._refuse_expired(now) if queue.hurries else []
        if settling.on and settling.ends(now, ledger, self.expecting):
            decisions += self.refuse_impossible(now)
        settled = not settling.on
        while settled and (entry := queue.head()) is not None:
            replica = self._placement.choose(entry.ticket, ledger)
            preempting = replica is None
            if replica is None:
                replica = self._where_it_preempts(entry)
            if replica is None and not self._holds_up_others(entry.ticket):
                break
            queue.take(entry.ticket.id)
            if replica is None:
                decisions.append(self._refuse(entry, self._no_replica(), now))
                continue
            ticket = entry.ticket
            ledger.grant(entry, replica, now, preempting=preempting)
            queue.charge(ticket.tenant, ticket.priority, ticket.cost)
            self.placed += 1
            decisions.append(Placement(ticket.id, replica))
        self.drain.observe_queue(now, len(queue))
        return decisions

    def _holds_up_others(self, ticket: Ticket) -> bool:
        """Whether others could be placed past the ticket, since it needs a kind of replica."""
        return bool(ticket.kind) and self.ledger.has_others(ticket.kind)

    def _where_it_preempts(self, entry: Entry) -> str | None:
        levels = self._config.admission_preemption
        if not levels or self._config.policy is SchedPolicy.FCFS:
            return None
        return where_it_preempts(entry, self.ledger.accounts(), levels)

    def impossible(self, ticket: Ticket) -> NoReplica | NeverFitsAnywhere | None:
        """Why the ticket could not be placed however long it waited, None if it could."""
        if not len(self.ledger):
            if self.expecting:
                return None
            return self._no_replica()
        if self.settling.on:
            return None  # a larger replica may report yet
        if ticket.blocks_max > self.ledger.largest:
            return NeverFitsAnywhere(ticket.blocks_max, self.ledger.largest)
        return None

    def too_many(self, tickets: Sequence[Ticket]) -> TooManyTogether | None:
        """Why the tickets could not all have places at once however long they waited, or None.

        For sure: as if all of them were as small as the smallest, and each replica that is still
        expected as large as the largest that is known.
        """
        accounts = self.ledger.accounts()
        if not accounts or self.settling.on:
            return None
        blocks = min(ticket.blocks_now for ticket in tickets)
        room = [account.most(blocks) for account in accounts]
        missing = max(0, self.expecting - len(accounts))
        limit = self._config.max_queued + sum(room) + missing * max(room)
        return TooManyTogether(len(tickets), limit) if len(tickets) > limit else None

    def refuse_impossible(self, now: float) -> list[Decision]:
        """Take out of the queue what can no longer be placed; it would block the rest for ever."""
        refusals: list[Decision] = []
        for entry in list(self.queue):
            error = self.impossible(entry.ticket)
            if error is not None:
                self.queue.take(entry.ticket.id)
                refusals.append(self._refuse(entry, error, now))
        return refusals

    def _refuse_expired(self, now: float) -> list[Decision]:
        """Take out of the queue what was to be placed before now."""
        refusals: list[Decision] = []
        while (entry := self.queue.take_expired(now)) is not None:
            self.expired += 1
            error = Expired(now - entry.since, entry.ticket.start_within_s or 0.0)
            refusals.append(self._refuse(entry, error, now))
        return refusals

    def _refuse(self, entry: Entry, error: No, now: float) -> Decision:
        """Turn away what has just left the queue: its tenant gets back what it has not used."""
        self.tenants.drop(entry.ticket.id, now, ran=False)
        return Refusal(entry.ticket.id, error)

    def _no_replica(self) -> NoReplica:
        return NoReplica(self.retry(self._config.no_replica_retry_s))

    def retry(self, seconds: float) -> float:
        """When to come back, about so many seconds from now, but not all in the same one."""
        config = self._config
        return spread(seconds, config.retry_min_s, config.retry_max_s, self._rng)

    def retry_no_earlier(self, seconds: float) -> float:
        """The same, for a time before which it is known to be in vain."""
        return no_earlier(seconds, self._config.retry_min_s, self._rng)
