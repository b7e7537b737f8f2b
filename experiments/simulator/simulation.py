"""simulate: a load on a deployment whose time is only counted."""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Final

from deployments.autoscaling import scaler_for
from deployments.config import ServeConfig
from deployments.engine_config import engine_config
from deployments.policy_source import with_policies
from deployments.router_config import SETTLE_HEARTBEATS
from experiments.loads.load import Load
from experiments.simulator.allowed import check_allowed
from experiments.simulator.clients import Clients
from experiments.simulator.fleet import Fleet
from experiments.simulator.gateway import SimulatedGateway
from experiments.simulator.outcome import Run, Sample, Setting
from experiments.simulator.replica import SimulatedReplica
from experiments.simulator.router import SimulatedRouter
from experiments.simulator.scenario import Scenario
from experiments.simulator.step_time import StepTime
from experiments.simulator.texts import Texts
from experiments.simulator.tickets import Tickets
from experiments.simulator.timeline import Timeline

_OBJECTS: Final = 500_000  # so many new ones, and it looks for cycles


def simulate(
    scenario: Scenario,
    load: Load,
    step_time: StepTime,
    progress: Callable[[float], None] | None = None,
) -> Run:
    """Send a load to a simulated deployment, and return what came of it.

    Two calls with equal arguments return equal runs.

    Args:
        scenario: the deployment.
        load: what is sent to it.
        step_time: how long the replicas' steps take.
        progress: called with the simulated second, now and then.

    Raises:
        ConfigError: a policy of the operator's own cannot be read or made.
        PolicyError: its answer cannot be followed; where a server would go on without it, a
            simulation would show something else than that policy.
        ValueError: see `check_allowed`.
    """
    check_allowed(scenario.config, load)
    scenario = replace(scenario, config=with_policies(scenario.config))
    with _seldom_collecting():
        return _Simulation(scenario, load, step_time, progress).run()


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    """Look for cycles of objects less often: a run makes none, and lost a seventh of its time."""
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Simulation:
    """All parts of one run."""

    def __init__(
        self,
        scenario: Scenario,
        load: Load,
        step_time: StepTime,
        progress: Callable[[float], None] | None,
    ) -> None:
        self._scenario = scenario
        self._load = load
        self._step_time = step_time
        self._progress = progress
        config = scenario.config
        # The routers are to know the replicas by the time the load begins.
        begin = -(SETTLE_HEARTBEATS * config.heartbeat_s + 1.0)
        self._timeline = Timeline(begin)
        self._engine = engine_config(config)
        self._texts = Texts(
            load,
            matter=config.prefix_cache or config.by_prefix,
            apart=config.access is not None and config.prefix_cache_scope == "tenant",
        )
        scaler = None if config.autoscaling == "off" else scaler_for(config)
        self._fleet = Fleet(scenario, self._timeline, self._replica, scaler)
        self._routers = [self._router(number) for number in range(scenario.routers)]
        self._clients = Clients(scenario, load, self._timeline, self._timeline.stop)
        self._gateway = SimulatedGateway(
            scenario,
            self._clients,
            Tickets(scenario, self._texts, self._timeline),
            self._timeline,
            self._fleet,
            self._routers,
        )
        for router in self._routers:
            router.open(self._gateway)
        self._samples: list[Sample] = []

    def run(self) -> Run:
        """Let all of it happen."""
        self._fleet.begin(self._routers, self._gateway)
        self._clients.begin(self._gateway.arrived)
        self._timeline.at(0.0, self._sample)
        if self._load.arrivals:
            self._timeline.run()
        return self._result()

    def _replica(self, serial: int) -> SimulatedReplica:
        return SimulatedReplica(
            serial,
            self._scenario,
            self._engine,
            self._step_time,
            self._timeline,
            self._texts,
            self._gateway.finished,
            self._gateway.started,
            self._crowd if self._scenario.crowding > 1.0 else None,
        )

    def _crowd(self) -> float:
        """How many times as long a step takes that a replica begins now, and does not yet count."""
        others = self._fleet.serving - 1
        computing = sum(one.computing for one in self._fleet)
        share = computing / others if others > 0 else 0.0
        return 1.0 + (self._scenario.crowding - 1.0) * share

    def _router(self, number: int) -> SimulatedRouter:
        """One of the routers, with its part of the replicas and of the queue."""
        scenario, config = self._scenario, self._scenario.config
        routers = scenario.routers
        expected = config.max_replicas
        if config.autoscaling == "off":
            expected = len(range(number, config.replicas, routers))
        part = len(range(number, config.max_queued, routers))
        own = config if routers == 1 else config.model_copy(update={"max_queued": part})
        return SimulatedRouter(number, scenario, own, expected, self._timeline)

    # ---- what is looked at ------------------------------------------------------------

    def _sample(self, _: None) -> None:
        """Note how the fleet is."""
        gauges = [router.core.gauges() for router in self._routers]
        stats = [one.scheduler.stats() for one in self._fleet if one.heard]
        now = self._timeline.now
        self._samples.append(
            Sample(
                at=now,
                wanted=self._fleet.wanted,
                serving=len(stats),
                starting=self._fleet.starting,
                queued=sum(one.queued for one in gauges),
                oldest_wait_s=max(one.oldest_wait_s for one in gauges),
                waiting=sum(one.waiting for one in stats),
                running=sum(one.running for one in stats),
                free_blocks=sum(one.free_blocks for one in stats),
                total_blocks=sum(one.total_blocks for one in stats),
            )
        )
        if self._progress is not None:
            self._progress(now)
        self._timeline.after(self._scenario.sample_s, self._sample)

    def _result(self) -> Run:
        outcomes = self._clients.outcomes
        last = max((one.last_token_at or one.at for one in outcomes), default=0.0)
        fleet = self._fleet
        fleet.close()
        return Run(
            name=self._scenario.name,
            kind="simulated",
            load=self._load.name,
            settings=_settings(self._scenario),
            outcomes=outcomes,
            samples=self._samples,
            seconds=last,
            replica_s=fleet.paid_s,
            busy_s=fleet.busy_s,
            counts=self._counts(),
        )

    def _counts(self) -> Mapping[str, float]:
        fleet, gateway = self._fleet, self._gateway
        gauges = [router.core.gauges() for router in self._routers]
        outcomes = self._clients.outcomes
        return {
            **fleet.done,
            "prompt_tokens": sum(
                one.prompt_tokens for one in self._clients.outcomes if one.attempts
            ),
            "output_tokens": sum(one.output_tokens for one in outcomes),
            "placements": sum(one.placed_total for one in gauges),
            "bounces": sum(one.bounced_total for one in gauges),
            "busy": sum(one.busy_total for one in gauges),
            "reports": sum(router.reports for router in self._routers),
            "router_messages": sum(router.messages for router in self._routers),
            "resumed": gateway.resumed,
            "drained": gateway.drained,
            "expired": gateway.expired,
            "retries": self._clients.retried,
            "failed_replicas": fleet.failed,
            "lost_replicas": sum(router.lost for router in self._routers),
            "started_replicas": fleet.started,
            "scalings": fleet.changes,
        }


def _settings(scenario: Scenario) -> Mapping[str, Setting]:
    """What is not as it is by default, and what a simulation cannot do without."""
    config, usual = scenario.config.to_args(), ServeConfig().to_args()
    shown: dict[str, Setting] = {}
    sizes, hidden = ["replicas"], ["api_key"]
    if scenario.config.autoscaling != "off":
        sizes, hidden = ["min_replicas", "max_replicas"], [*hidden, *sizes]
    for name, value in config.items():
        if name not in hidden and (value != usual[name] or name in sizes):
            shown[name] = value if isinstance(value, str | int | float) else str(value)
    for field in fields(scenario):
        value = getattr(scenario, field.name)
        if field.name not in ("name", "config", "failures") and value is not None:
            shown[field.name] = value
    if scenario.failures:
        shown["failures"] = len(scenario.failures)
    return shown
