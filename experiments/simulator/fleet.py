"""Fleet: replicas that start, serve, leave and fail, and how many of them there should be."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final

from deployments.autoscaling import RELAY_S, Demand, Scaler, State
from deployments.autoscaling.source import PolicyError, told
from deployments.periods import AGAIN_S, CONTROL_S, HEALTH_S, HEALTH_TIMEOUT_S, MISSES, PROBE_S
from experiments.simulator.errand import Errand
from experiments.simulator.gateway import SimulatedGateway
from experiments.simulator.replica import SimulatedReplica
from experiments.simulator.router import SimulatedRouter
from experiments.simulator.scenario import Failure, FailureKind, Scenario
from experiments.simulator.timeline import Timeline

COUNTED: Final = (
    "preemptions",
    "admission_preemptions",
    "gap_admissions",
    "recomputed_tokens",
    "restored_tokens",
    "steps",
    "queried_tokens",
    "found_tokens",
)
"""What is added up of schedulers' stats."""

_TIMEOUTS: Final = 3
"""Health checks in a row that get no answer, after which Serve takes a replica for dead."""


class Fleet:
    """Does what Serve's controller does for the replicas.

    Attributes:
        wanted: replicas that there are meant to be.
        started: replicas ordered so far, those there were from the beginning included.
        failed: replicas that failed.
        changes: times that the autoscaler changed the number.
        paid_s: replica-seconds of those that have ended.
        busy_s: seconds in which those computed.
        done: what their schedulers did.
    """

    def __init__(
        self,
        scenario: Scenario,
        timeline: Timeline,
        make: Callable[[int], SimulatedReplica],
        scaler: Scaler | None,
    ) -> None:
        """Have no replica yet; see `begin`.

        Args:
            scenario: what it runs in.
            timeline: the time.
            make: orders a replica; takes how many there were before it.
            scaler: says how many there should be; None if that never changes.
        """
        self._scenario = scenario
        self._timeline = timeline
        self._make = make
        self._scaler = scaler
        self._state: State | None = None
        self._starting: list[SimulatedReplica] = []
        self._serving: list[SimulatedReplica] = []  # for Serve; one may be dead, unnoticed
        self._known: dict[str, SimulatedReplica] = {}  # all whose process runs, and the unnoticed
        self._relayed: dict[str, Demand] = {}
        self._rng = Random(f"{scenario.seed} fleet")
        config = scenario.config
        self.wanted = config.replicas if scaler is None else max(1, config.min_replicas)
        self.started = 0
        self.failed = 0
        self.changes = 0
        self.paid_s = 0.0
        self.busy_s = 0.0
        self.done = dict.fromkeys(COUNTED, 0)

    def begin(self, routers: Sequence[SimulatedRouter], gateway: SimulatedGateway) -> None:
        """Let the first replicas serve at once, and plan all that is to happen."""
        self._routers = routers
        self._gateway = gateway
        for _ in range(self.wanted):
            self._serve(self._order())
        self._timeline.after(CONTROL_S, self._control)
        for failure in self._scenario.failures:
            self._timeline.at(failure.at, self._fail_planned, failure)

    def get(self, name: str) -> SimulatedReplica | None:
        """The replica of that name; None for one that has gone for good."""
        return self._known.get(name)

    def __iter__(self) -> Iterator[SimulatedReplica]:
        """Those that serve, the leaving ones included, and those that are dead unnoticed."""
        return (one for one in self._known.values() if one.ready)

    @property
    def serving(self) -> int:
        """How many serve, whether or not they are to go."""
        return sum(one.ready and one.heard for one in self._known.values())

    @property
    def starting(self) -> int:
        """How many are on their way up."""
        return len(self._starting)

    # ---- up ---------------------------------------------------------------------------

    def _order(self) -> SimulatedReplica:
        replica = self._make(self.started)
        self.started += 1
        self._known[replica.name] = replica
        self._starting.append(replica)
        return replica

    def _serve(self, replica: SimulatedReplica) -> None:
        """A replica is there, unless it was called off meanwhile."""
        if replica not in self._starting:
            return
        self._starting.remove(replica)
        self._serving.append(replica)
        replica.serve(self._routers[replica.serial % len(self._routers)])
        if self._scaler is not None:
            self._timeline.after(RELAY_S * self._rng.random(), self._relay, replica)
        if self._scenario.mtbf_s is not None:
            lasts_s = self._rng.expovariate(1 / self._scenario.mtbf_s)
            self._timeline.after(lasts_s, self._fail_by_chance, replica)

    # ---- down ---------------------------------------------------------------------------

    def _stop(self) -> None:
        """Let one replica go: one that does not serve yet, the newest of them, else the newest."""
        if self._starting:
            self._forget(self._starting.pop())
            return
        replica = self._serving.pop()
        # It notices by asking a few times whether it is still wanted.
        noticed_s = PROBE_S * self._rng.random() + (MISSES - 1) * AGAIN_S
        self._timeline.after(noticed_s, self._leave, replica)

    def _leave(self, replica: SimulatedReplica) -> None:
        if replica.alive and replica.heard:
            replica.leave()
            until = self._timeline.now + self._scenario.config.drain_s
            replica.when_empty(self._go)
            self._timeline.at(until, self._go, replica)

    def _go(self, replica: SimulatedReplica) -> None:
        """A replica that was to go is empty, or may wait no longer."""
        if not (replica.alive and replica.heard):
            return
        errands = replica.hand_over()
        router = self._routers[replica.serial % len(self._routers)]
        router.send(router.left, replica.name)
        replica.die()
        self._forget(replica)
        self._timeline.after(self._scenario.network_s, self._drained, errands)

    def _drained(self, errands: list[Errand]) -> None:
        self._gateway.lost(errands, left=True)

    def _forget(self, replica: SimulatedReplica) -> None:
        """A replica has gone for good, and is paid for no more."""
        del self._known[replica.name]
        self._relayed.pop(replica.name, None)
        now = self._timeline.now
        self.paid_s += now - max(0.0, replica.ordered_at) if now > 0 else 0.0
        self.busy_s += replica.busy_s
        stats = replica.scheduler.stats()
        for name in COUNTED:
            self.done[name] += getattr(stats, name)

    def close(self) -> None:
        """Let all that there are be gone, for the books."""
        for replica in list(self._known.values()):
            self._forget(replica)

    # ---- failures -----------------------------------------------------------------------

    def _fail_planned(self, failure: Failure) -> None:
        working = [one for one in self._serving if one.alive and one.heard]
        if failure.replica < len(working):
            self._fail(working[failure.replica], failure.kind)

    def _fail_by_chance(self, replica: SimulatedReplica) -> None:
        if replica.alive and replica.heard:
            self._fail(replica, self._scenario.mtbf_kind)

    def _fail(self, replica: SimulatedReplica, kind: FailureKind) -> None:
        self.failed += 1
        network_s = self._scenario.network_s
        if kind == "silence":
            replica.fall_silent()
            noticed_s = _TIMEOUTS * HEALTH_TIMEOUT_S
        else:
            replica.die()
            self._timeline.after(network_s, self._noticed, (replica, replica.hand_over()))
            noticed_s = HEALTH_S
        self._timeline.after(noticed_s, self._replace, replica)

    def _noticed(self, loss: tuple[SimulatedReplica, list[Errand]]) -> None:
        """The gateways see that a process is dead."""
        replica, errands = loss
        router = self._routers[replica.serial % len(self._routers)]
        router.send(router.dead, replica.name)
        self._gateway.lost(errands, left=False)

    def _replace(self, replica: SimulatedReplica) -> None:
        """Serve sees that a replica is dead; the control loop starts another."""
        if replica in self._serving:
            self._serving.remove(replica)
        if replica.name in self._known:
            # Whoever still waits for it hears now, if it has not before.
            router = self._routers[replica.serial % len(self._routers)]
            router.send(router.dead, replica.name)
            self._gateway.given_up(replica.name)
            replica.die()
            self._forget(replica)

    # ---- how many -------------------------------------------------------------------------

    def _relay(self, replica: SimulatedReplica) -> None:
        """Serve asks a replica for what the autoscaler is to know."""
        if not (replica.alive and replica.heard):
            return
        if replica.demand is not None:
            self._relayed[replica.name] = replica.demand
        self._timeline.after(RELAY_S, self._relay, replica)

    def _control(self, nothing: None) -> None:
        """One turn of the controller's loop."""
        if self._scaler is not None:
            self._decide(self._scaler)
        there = len(self._starting) + len(self._serving)
        for _ in range(self.wanted - there):
            replica = self._order()
            self._timeline.after(self._scenario.start_s, self._serve, replica)
        for _ in range(there - self.wanted):
            self._stop()
        self._timeline.after(CONTROL_S, self._control)

    def _decide(self, scaler: Scaler) -> None:
        newest = max(self._relayed.values(), key=lambda one: one.at, default=None)
        now = self._timeline.now
        try:
            wanted, self._state = scaler.decide(newest, self.wanted, now, self._state)
        except (Exception, SystemExit) as error:
            config = self._scenario.config
            own = None if config.policies is None else config.policies.autoscaling
            if own is None:
                raise
            why = told(error, own.path)
            raise PolicyError(f"autoscaling {config.autoscaling}: {why}") from error
        if not self._serving and self._routers[0].wakes:
            # A call waits for a replica: Serve starts one, whatever the policy says.
            wanted = max(1, self.wanted)
        self.changes += wanted != self.wanted
        self.wanted = wanted
