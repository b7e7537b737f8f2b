"""SimulatedGateway: what all gateways do with requests, from their coming to their answers.

The rules are those of `deployments.dispatch`: a ticket is given up exactly once, a request whose
replica is lost goes on elsewhere with what it has, and what has a time limit is given up then.
"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final, Protocol

from deployments.messages import Refusal, RefusalKind, unavailable
from deployments.order import END, FIRST_TOKEN, Failed, Refused
from deployments.patience import MAX_LOSSES, Patience
from deployments.refused import api_error
from experiments.simulator.clients import Clients
from experiments.simulator.errand import Errand
from experiments.simulator.replica import SimulatedReplica
from experiments.simulator.router import SimulatedRouter
from experiments.simulator.scenario import Scenario
from experiments.simulator.shards import Shards
from experiments.simulator.tally import SimulatedTally
from experiments.simulator.tickets import Tickets
from experiments.simulator.timeline import Timeline

_ASK_AGAIN_S: Final = 1.0  # for a replica that it can go on with, though others serve

_TURNED_AWAY: Final = frozenset({429, 503, 504})

# What no client can do anything about.
_NOT_FOR_CLIENTS: Final = frozenset(
    {RefusalKind.ABANDONED, RefusalKind.NO_STREAM, RefusalKind.OTHER}
)


class Replicas(Protocol):
    """Where gateways find replicas by name."""

    def get(self, name: str) -> SimulatedReplica | None:
        """The replica of that name; None for one that has gone for good."""

    def __iter__(self) -> Iterator[SimulatedReplica]:
        """Those that run."""


class SimulatedGateway:
    """All gateways, as one that is never busy; each of them tells of its own tickets.

    Attributes:
        resumed, drained: times that a request went on elsewhere, its replica being lost, or gone.
        expired: those that were given up at a time limit.
    """

    def __init__(
        self,
        scenario: Scenario,
        clients: Clients,
        tickets: Tickets,
        timeline: Timeline,
        replicas: Replicas,
        routers: Sequence[SimulatedRouter],
    ) -> None:
        """Make ready for requests.

        Args:
            scenario: what it runs in.
            clients: hear what comes of their requests.
            tickets: what the routers are told of these.
            timeline: the time.
            replicas: by name.
            routers: each has a part of the requests.
        """
        self._scenario = scenario
        self._timeline = timeline
        self._clients = clients
        self._tickets = tickets
        self._replicas = replicas
        self._shards = Shards(scenario, timeline, routers)
        self._rng = Random(f"{scenario.seed} gateway")
        self._hold_s = scenario.config.hold_s
        self.resumed, self.drained, self.expired = 0, 0, 0
        self._tally = SimulatedTally(scenario, timeline, replicas, routers)
        self._hanging: dict[str, list[tuple[Errand, str]]] = {}

    def arrived(self, errand: Errand) -> None:
        """A request has come to a gateway."""
        errand.came_at = self._timeline.now
        scenario, arrival = self._scenario, errand.arrival
        if arrival.prompt_tokens + arrival.output_tokens > scenario.context:
            # Not cut: whoever names a length counts on it.
            refusal = Refusal(
                RefusalKind.TOO_LONG, current=arrival.prompt_tokens, limit=scenario.context
            )
            self._end(errand, Refused(refusal))
            return
        for limit_s, limit in ((scenario.first_token_s, FIRST_TOKEN), (scenario.end_s, END)):
            if limit_s is not None:
                self._timeline.after(limit_s, self._out_of_time, (errand, errand.tries, limit))
        # What happened to an earlier try is not known any more.
        errand.going_on = False
        errand.patience, errand.losses = None, 0
        self._ask(errand, scenario.gateway_s)

    # ---- tickets ----------------------------------------------------------------------

    def _place(self, errand: Errand) -> None:
        """Ask the router for another replica."""
        if not errand.over:
            self._ask(errand, 0.0)

    def _ask(self, errand: Errand, delay_s: float) -> None:
        """Ask the router for a replica, with a new ticket, in so many seconds."""
        errand.ticket = self._tickets.of(errand)
        errand.lives += 1
        errand.going_on = True
        errand.taken = False
        router = self._shards.router_of(errand)
        router.send(router.acquire, errand, delay_s)

    def _give_up(self, errand: Errand, *, finished: bool) -> None:
        """Give up its ticket, here and at the router."""
        ticket, errand.ticket = errand.ticket, None
        if ticket is not None:
            self._shards.returns_of(errand).give_up((ticket.id, finished))

    # ---- answers of the router ----------------------------------------------------------

    def placed(self, answer: tuple[Errand, str, str]) -> None:
        """Submit to the replica that the router named."""
        errand, key, _ = answer
        if errand.holds(key):
            self._timeline.after(self._scenario.network_s, self._submit, answer)

    def _submit(self, answer: tuple[Errand, str, str]) -> None:
        """A request has come to the replica, if there still is one."""
        errand, key, name = answer
        if not errand.holds(key):
            return
        replica = self._replicas.get(name)
        back_s = self._scenario.network_s
        errand.outcome.replica = name
        if replica is None or not replica.alive:
            self._timeline.after(back_s, self._unreachable, (errand, key))
            return
        if not replica.heard:  # no answer will come; the router will tell
            self._hanging.setdefault(name, []).append((errand, key))
            return
        refusal = replica.take(errand)
        if refusal is None:
            errand.taken = True
            errand.patience = None
            errand.outcome.attempts += 1
        elif refusal.kind is RefusalKind.QUEUE_FULL:
            router = self._shards.router_of(errand)
            router.send(router.bounced, errand, back_s)
        else:
            self._timeline.after(back_s, self.refused, (errand, key, refusal))

    def refused(self, answer: tuple[Errand, str, Refusal]) -> None:
        """The router, or a replica, takes the request not: tell the client, or ask again."""
        errand, key, refusal = answer
        if not errand.holds(key):
            return
        goes_on = refusal.kind is RefusalKind.NO_REPLICA and errand.generated
        if goes_on and not self._without(errand).over:
            router = self._shards.router_of(errand)
            router.send(router.acquire, errand, _ASK_AGAIN_S)
            return
        self._turn_away(errand, refusal)

    def _turn_away(self, errand: Errand, refusal: Refusal) -> None:
        self._give_up(errand, finished=False)
        self.expired += refusal.kind is RefusalKind.EXPIRED
        kept = refusal.kind in (RefusalKind.NO_REPLICA, RefusalKind.EXPIRED)
        if not kept and (errand.generated or refusal.kind in _NOT_FOR_CLIENTS):
            self._end(errand, Failed(refusal.kind.value))
        else:
            self._end(errand, Refused(refusal))

    def _end(self, errand: Errand, error: Refused | Failed) -> None:
        """Tell the client that nothing, or nothing more, comes; it may come back."""
        outcome, told = errand.outcome, api_error(error)
        # What breaks off was not turned away, and is not asked for again: its client has the
        # beginning of an answer.
        begun = outcome.first_token_at is not None
        if not begun and self._clients.come_back(errand, told):
            return
        away = told.status in _TURNED_AWAY and not begun
        outcome.status = "refused" if away else "failed"
        outcome.reason = f"{told.type}/{told.code}" if told.code else told.type
        self._note_tokens(errand)
        self._clients.close(errand)

    # ---- what replicas send -------------------------------------------------------------

    def started(self, errand: Errand, now: float) -> None:
        """A replica has sent the first token of an answer at ``now``."""
        there = now + 2 * self._scenario.network_s
        errand.outcome.first_token_at = there
        self._tally.first_token(now + self._scenario.network_s - errand.came_at)

    def finished(self, errand: Errand) -> None:
        """A replica has sent the last token of an answer."""
        network_s = self._scenario.network_s
        self._note_tokens(errand)
        errand.outcome.status = "ok"
        self._tally.served(errand, errand.generated)
        ticket, errand.ticket = errand.ticket, None
        if ticket is not None:
            returns = self._shards.returns_of(errand)
            self._timeline.after(network_s, returns.give_up, (ticket.id, True))
        self._clients.close(errand)

    def _note_tokens(self, errand: Errand) -> None:
        outcome = errand.outcome
        outcome.output_tokens = errand.generated
        if errand.generated:
            outcome.last_token_at = errand.last_at + 2 * self._scenario.network_s

    # ---- losses -------------------------------------------------------------------------

    def lost(self, errands: Sequence[Errand], *, left: bool) -> None:
        """The stream from a replica has ended: what it had goes on elsewhere.

        Args:
            errands: what it had, with the tokens that it had sent.
            left: it was to go, and has said goodbye.
        """
        for errand in errands:
            if errand.over:
                continue
            self._give_up(errand, finished=False)
            self._without(errand)
            errand.losses += not left
            if errand.losses > MAX_LOSSES:
                self._fail(errand)
                continue
            self.drained += left
            self.resumed += not left
            self._place(errand)

    def given_up(self, name: str) -> None:
        """The router has given a replica up by itself, and all that it had with it."""
        for errand, key in self._hanging.pop(name, ()):
            if errand.holds(key):
                self._miss(errand)
        replica = self._replicas.get(name)
        if replica is not None:
            self.lost(replica.hand_over(), left=False)

    def _unreachable(self, answer: tuple[Errand, str]) -> None:
        errand, key = answer
        if errand.holds(key):
            self._miss(errand)

    def _miss(self, errand: Errand) -> None:
        """Its replica could not be reached: ask the router again, in a moment."""
        self._give_up(errand, finished=False)
        patience = self._without(errand)
        if patience.over:
            self._turn_away(errand, unavailable(self._rng))
        else:
            self._timeline.after(patience.pause_s(), self._place, errand)

    def _without(self, errand: Errand) -> Patience:
        """Its replica is gone, or could not be reached; return for how long that is borne."""
        patience = errand.patience
        if patience is None:
            patience = errand.patience = Patience(self._hold_s, self._timeline.clock)
        patience.lost()
        return patience

    def _fail(self, errand: Errand) -> None:
        self._end(errand, Failed("too many replicas died under it"))

    def _out_of_time(self, limit: tuple[Errand, int, str]) -> None:
        """A time limit of a try has come."""
        errand, tries, which = limit
        begun = errand.outcome.first_token_at is not None
        if errand.over or errand.tries != tries or (begun and which == FIRST_TOKEN):
            return
        ticket = errand.ticket
        replica = self._replicas.get(errand.outcome.replica)
        if ticket is not None and replica is not None and errand.taken:
            replica.drop(ticket.id)
        self._turn_away(errand, Refusal(RefusalKind.EXPIRED, message=which))
