"""SimulatedRouter: a RouterCore at the end of a network, and what its process does around it."""

from collections.abc import Iterable, Mapping
from random import Random
from typing import Protocol

from deployments.autoscaling import Demand, PolicyError
from deployments.config import ServeConfig
from deployments.lookout import Lookout
from deployments.messages import Refusal
from deployments.metrics import Counts
from deployments.muster import Muster
from deployments.pending import REFUSALS, refusal_of
from deployments.periods import TICK_S
from deployments.router_config import placement_policy, router_config
from experiments.simulator.errand import Errand
from experiments.simulator.hope import SimulatedHope
from experiments.simulator.replica import SimulatedReplica
from experiments.simulator.scenario import Scenario
from experiments.simulator.timeline import Action, Timeline
from router.core import RouterCore
from router.errors import UnknownTicket
from router.report import Report
from router.ticket import Decision, Lost, Placement


class Desk(Protocol):
    """Who hears from a router: all gateways as one."""

    def placed(self, answer: tuple[Errand, str, str]) -> None:
        """A ticket, the second, was placed on a replica, the third."""

    def refused(self, answer: tuple[Errand, str, Refusal]) -> None:
        """A ticket, the second, was refused."""

    def given_up(self, replica: str) -> None:
        """The router has given a replica up by itself."""


class SimulatedRouter:
    """What `deployments.router.Router` is, with messages that take time.

    Messages are handled one after the other, each in ``Scenario.router_s``.

    Attributes:
        core: the real one.
        messages: that were sent to it.
        lost: replicas given up that did not leave.
        reports: that were heard.
    """

    def __init__(
        self,
        number: int,
        scenario: Scenario,
        config: ServeConfig,
        expected: int,
        timeline: Timeline,
    ) -> None:
        """Start with no replica; `open` has to follow before anything else is called.

        Args:
            number: tells it from others in the run.
            scenario: what it runs in.
            config: its part of the deployment's settings.
            expected: replicas that it is to have.
            timeline: the time.
        """
        self._timeline = timeline
        self._network_s = scenario.network_s
        self._router_s = scenario.router_s
        self._config = config
        self._autoscaled = config.autoscaling != "off"
        rng = Random(f"{scenario.seed} router {number}")
        self.core = RouterCore(
            router_config(config, expected),
            timeline.clock,
            rng,
            placement_policy(config, Random(f"{scenario.seed} placement {number}"), self._mistaken),
        )
        self._asked: dict[str, Errand] = {}
        self._lookout = Lookout(timeline.clock, timeline.clock)
        self._demand: Demand | None = None
        self._free_at = timeline.now
        self._desk: Desk
        self._hope = SimulatedHope(config.hold_s, timeline, self._despair)
        self._muster: Muster[SimulatedReplica] = Muster(
            config,
            expected,
            self.core,
            self._hope,
            lambda: bool(self.core.gauges().queued),
            self._settle,
            self._lookout.changed,
        )
        self.lost = 0
        self.messages = 0
        self.reports = 0
        self._muster.start()
        timeline.after(TICK_S, self._tick)

    def open(self, desk: Desk) -> None:
        """Tell a desk what is decided, from now on."""
        self._desk = desk

    def _mistaken(self, mistake: str) -> None:
        raise PolicyError(f"placement {self._config.placement} {mistake}")

    # ---- messages ---------------------------------------------------------------------

    def send(self, action: Action, subject: object, delay_s: float = 0.0) -> None:
        """Let a message arrive: ``action(subject)``, one of this router's, is its handling.

        Args:
            action: what to do.
            subject: with what.
            delay_s: what passes before it is sent.
        """
        self.messages += 1
        arrives = self._timeline.now + delay_s + self._network_s
        if self._router_s:
            self._timeline.at(arrives, self._queue, (action, subject))
        else:
            self._timeline.at(arrives, action, subject)

    def _queue(self, message: tuple[Action, object]) -> None:
        self._free_at = max(self._timeline.now, self._free_at) + self._router_s
        self._timeline.at(self._free_at, *message)

    def acquire(self, errand: Errand) -> None:
        """Place an errand's newest ticket, or queue it, or refuse it."""
        ticket = errand.ticket
        if ticket is None:
            return
        self._lookout.asked()
        self._muster.asked()
        self._asked[ticket.id] = errand
        try:
            self._settle(self.core.acquire(ticket))
        except REFUSALS as error:
            del self._asked[ticket.id]
            answer = (errand, ticket.id, refusal_of(error))
            self._timeline.after(self._network_s, self._desk.refused, answer)

    def bounced(self, errand: Errand) -> None:
        """The replica had no room for an errand's ticket: place it again."""
        ticket = errand.ticket
        if ticket is None:
            return
        self._asked[ticket.id] = errand
        try:
            self._settle(self.core.bounced(ticket.id))
        except UnknownTicket:
            # The replica was lost meanwhile. It had a place.
            errand.again()
            self.acquire(errand)

    def release(self, tickets: Mapping[str, bool]) -> None:
        """Give up tickets; True for one whose end was seen."""
        for key, finished in tickets.items():
            self._asked.pop(key, None)
            self._settle(self.core.release(key, finished=finished))

    def send_report(self, replica: SimulatedReplica, report: Report) -> None:
        """Let a replica's report arrive."""
        self.send(self._report, (replica, report))

    def _report(self, message: tuple[SimulatedReplica, Report]) -> None:
        replica, report = message
        self.reports += 1
        self._settle(self.core.report(report))
        full = self.core.wants_full_report(report.replica)
        if not full or report.replica in self._muster.replicas:
            self._muster.meet(replica.name, replica)
        self._timeline.after(self._network_s, self._answer_report, (replica, full, self._demand))

    def _answer_report(self, answer: tuple[SimulatedReplica, bool, Demand | None]) -> None:
        replica, full, demand = answer
        replica.demand = demand
        replica.reporter.told(full)

    def left(self, replica: str) -> None:
        """A replica goes, as was wanted."""
        self._lose(replica, self.core.lost(replica), left=True)

    def dead(self, replica: str) -> None:
        """A replica is dead for certain."""
        self._lose(replica, self.core.lost(replica))

    def count(self, counts: Counts) -> None:
        """Hear what gateways counted."""
        self._lookout.counted(counts)
        if counts.served:
            self._settle(self.core.served(counts.served))

    # ---- what it knows of replicas -------------------------------------------------------

    @property
    def wakes(self) -> bool:
        """Whether somebody waits for a replica and none is there."""
        return self._autoscaled and self._hope.alive

    def _settle(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            ticket = decision.ticket
            errand = self._asked.get(ticket)
            if isinstance(decision, Placement):
                if errand is not None:
                    if errand.outcome.placed_at is None:
                        errand.outcome.placed_at = self._timeline.now
                    placed = (errand, ticket, decision.replica)
                    self._timeline.after(self._network_s, self._desk.placed, placed)
            elif errand is not None:
                del self._asked[ticket]
                answer = (errand, ticket, refusal_of(decision.error))
                self._timeline.after(self._network_s, self._desk.refused, answer)

    def _lose(self, replica: str, lost: Lost, *, left: bool = False) -> None:
        self.lost += replica in self._muster.replicas and not left
        self._muster.lose(replica, lost.decisions)

    def _despair(self) -> None:
        self._muster.despair()

    # ---- as time passes --------------------------------------------------------------------

    def _tick(self, _: None) -> None:
        self._settle(self.core.tick())
        for replica in self.core.silent():
            self._lose(replica, self.core.lost(replica))
            self._timeline.after(self._network_s, self._desk.given_up, replica)
        if self._autoscaled:
            demand = self._lookout.look(self.core.gauges())
            # Half a fleet with all the queue in front of it would look overloaded.
            if not self.core.settling:
                self._demand = demand
        self._timeline.after(TICK_S, self._tick)
