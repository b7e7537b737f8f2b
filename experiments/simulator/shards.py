"""Shards: which router each request is dealt to, and how its end gets there."""

from collections.abc import Sequence
from zlib import crc32

from experiments.simulator.errand import Errand
from experiments.simulator.returns import Returns
from experiments.simulator.router import SimulatedRouter
from experiments.simulator.scenario import Scenario
from experiments.simulator.timeline import Timeline


class Shards:
    """The routers, each of which has a part of the requests; gateways take turns.

    Attributes:
        routers: all of them.
    """

    def __init__(
        self, scenario: Scenario, timeline: Timeline, routers: Sequence[SimulatedRouter]
    ) -> None:
        """Deal out nothing yet.

        Args:
            scenario: says how requests are dealt out.
            timeline: the time.
            routers: one at least.
        """
        self.routers = routers
        self._by_tenant = scenario.shard_by == "tenant"
        self._returns = [
            [Returns(one, timeline, scenario.network_s) for one in routers]
            for _ in range(scenario.config.gateways)
        ]

    def router_of(self, errand: Errand) -> SimulatedRouter:
        """Return the router of a request."""
        return self.routers[self._number(errand)]

    def returns_of(self, errand: Errand) -> Returns:
        """Return where its gateway gives its tickets up."""
        returns = self._returns[errand.outcome.index % len(self._returns)]
        return returns[self._number(errand)]

    def _number(self, errand: Errand) -> int:
        routers = len(self.routers)
        if routers == 1:
            return 0
        name = errand.arrival.tenant if self._by_tenant else str(errand.outcome.index)
        return crc32(name.encode()) % routers
