"""What is given up while a message is under way goes together in the next one."""

from typing import Any, cast

from experiments.simulator.returns import Returns
from experiments.simulator.router import SimulatedRouter
from experiments.simulator.timeline import Action, Timeline
from tests.experiments.simulator.runs import poisson, run


class Heard:
    """A router that only hears."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.told: list[tuple[float, dict[str, bool]]] = []

    def send(self, action: Action, subject: Any) -> None:
        self.timeline.after(1.0, action, subject)

    def release(self, tickets: dict[str, bool]) -> None:
        self.told.append((self.timeline.now, tickets))


def test_one_message_at_a_time_takes_all_that_waits() -> None:
    timeline = Timeline()
    router = Heard(timeline)
    returns = Returns(cast(SimulatedRouter, router), timeline, network_s=1.0)
    for at, key, finished in (
        (0.0, "a", True),
        (0.5, "b", False),
        (1.5, "c", True),
        (9, "d", True),
    ):
        timeline.at(at, returns.give_up, (key, finished))
    timeline.run()
    assert router.told == [
        (1.0, {"a": True}),
        (3.0, {"b": False, "c": True}),
        (10.0, {"d": True}),
    ]


def test_a_busy_router_gets_fewer_messages_for_as_many_requests() -> None:
    requests = poisson(100, 2, output_tokens=1)
    slow, quick = (
        run(requests, router_s=router_s, replicas=4, report_interval_s=5.0).counts
        for router_s in (0.005, 0.0)
    )
    assert slow["placements"] == quick["placements"] == len(requests.arrivals)
    asked = {name: one["router_messages"] - one["reports"] for name, one in
             (("slow", slow), ("quick", quick))}  # fmt: skip
    assert asked["slow"] < asked["quick"] <= 2 * len(requests.arrivals)


def test_each_gateway_has_a_message_of_its_own_under_way() -> None:
    """Fault: one batch for all of them, so that a busy router has less to do than it would."""
    requests = poisson(100, 2, output_tokens=1)
    asked = {}
    for gateways in (1, 4):
        settings = {"gateways": gateways, "replicas": 4, "report_interval_s": 5.0}
        counts = run(requests, router_s=0.005, **settings).counts
        asked[gateways] = counts["router_messages"] - counts["reports"]
    assert asked[1] < asked[4]
