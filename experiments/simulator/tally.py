"""SimulatedTally: what gateways count, and tell the routers now and then."""

from collections.abc import Iterable, Sequence

from deployments.metrics import Counts
from deployments.periods import COUNT_S
from experiments.simulator.errand import Errand
from experiments.simulator.replica import SimulatedReplica
from experiments.simulator.router import SimulatedRouter
from experiments.simulator.scenario import Scenario
from experiments.simulator.timeline import Timeline


class SimulatedTally:
    """What all gateways count; nothing if nobody looks at it in the routers."""

    def __init__(
        self,
        scenario: Scenario,
        timeline: Timeline,
        replicas: Iterable[SimulatedReplica],
        routers: Sequence[SimulatedRouter],
    ) -> None:
        """Begin to count.

        Args:
            scenario: says whether somebody looks.
            timeline: the time.
            replicas: those that run, whenever they are asked for.
            routers: all hear the same.
        """
        config = scenario.config
        self._by_tenant = config.access is not None
        self._timeline = timeline
        self._replicas = replicas
        self._routers = routers
        self._counts: Counts | None = None
        if config.autoscaling != "off" or self._by_tenant:
            self._counts = Counts()
            timeline.after(COUNT_S, self._hand_over)

    def first_token(self, ttft_s: float) -> None:
        """Count the first token of an answer, so many seconds after the request came."""
        if self._counts is not None:
            self._counts.observe("time_to_first_token_seconds", ttft_s)

    def served(self, errand: Errand, generated: int) -> None:
        """Count what was generated of an answer since it was last counted."""
        if self._counts is not None and generated > errand.counted:
            arrival = errand.arrival
            self._counts.serve(arrival.tenant, arrival.priority, generated - errand.counted)
            errand.counted = generated

    def _hand_over(self, _: None) -> None:
        counts = self._counts
        assert counts is not None
        if self._by_tenant:
            for replica in self._replicas:
                for errand in replica.errands.values():
                    total = replica.stretches.length(errand)
                    self.served(errand, total - errand.arrival.prompt_tokens)
        if counts:
            taken = counts.take()
            for router in self._routers:
                router.send(router.count, taken)
        self._timeline.after(COUNT_S, self._hand_over)
