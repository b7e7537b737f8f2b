"""What the autoscaler is told, moment by moment."""

from deployments.lookout import Lookout, requests
from deployments.metrics import Counts
from router.core import RouterConfig
from tests.router.fake_cluster import FakeClock, FakeReplica, make_core, run, ticket


def test_it_counts_what_there_is_and_what_waits() -> None:
    clock = FakeClock()
    lookout = Lookout(clock, lambda: 5.0)
    a, b = FakeReplica("a", total=10), FakeReplica("b", total=20, leaving=True)
    core = make_core(a, b, config=RouterConfig(lookahead=0), clock=clock)
    run(core, a, "x", 7)
    core.acquire(ticket("y", 6))
    demand = lookout.look(core.gauges())
    # One that leaves is no capacity.
    assert (demand.replicas, demand.total_blocks, demand.free_blocks) == (1, 10, 3)
    assert (demand.queued, demand.queued_blocks, demand.running) == (1, 6, 1)
    assert (demand.seats, demand.at, demand.idle_s) == (64, 5.0, 0.0)
    assert requests(core.gauges()) == 2


def test_idle_is_since_the_last_request_however_short() -> None:
    clock = FakeClock()
    lookout = Lookout(clock, lambda: 5.0)
    gauges = make_core(FakeReplica("a"), clock=clock).gauges()
    clock.now += 10
    assert lookout.look(gauges).idle_s == 10
    lookout.asked()
    clock.now += 3
    assert lookout.look(gauges).idle_s == 3


def test_times_to_first_token_of_another_fleet_are_forgotten() -> None:
    clock = FakeClock()
    lookout = Lookout(clock, lambda: 5.0)
    gauges = make_core(FakeReplica("a"), clock=clock).gauges()
    counts = Counts()
    counts.observe("time_to_first_token_seconds", 0.2)
    lookout.counted(counts)
    assert lookout.look(gauges).ttft_s is not None
    lookout.changed()
    assert lookout.look(gauges).ttft_s is None
