import pytest

from router.core import RouterConfig
from tests.router.fake_cluster import FakeClock, FakeReplica, make_core, ticket


def test_gauges_tell_the_whole_state() -> None:
    clock = FakeClock()
    replica = FakeReplica("a", total=10)
    config = RouterConfig(lookahead=1, max_queued=7, suspect_after_s=2.0, expecting=3)
    core = make_core(replica, config=config, clock=clock)
    for i in range(4):
        core.acquire(ticket(str(i), 4))
        clock.now += 1.0
    gauges = core.gauges()
    assert (gauges.queued, gauges.max_queued, gauges.expecting) == (1, 7, 3)
    assert (gauges.placed_total, gauges.bounced_total, gauges.busy_total) == (3, 0, 0)
    assert gauges.oldest_wait_s == pytest.approx(1.0)
    (a,) = gauges.replicas
    assert (a.replica, a.total_blocks, a.free_blocks, a.effective_free_blocks) == ("a", 10, 10, -2)
    assert (a.running, a.waiting, a.charged, a.grants, a.open) == (0, 0, 3, 3, True)
    assert a.age_s == pytest.approx(4.0)
    assert a.suspect


def test_an_old_report_that_comes_late_does_not_look_like_news() -> None:
    clock = FakeClock()
    replica = FakeReplica("a")
    core = make_core(replica, clock=clock)
    old = replica.report()
    core.report(replica.report())
    clock.now += 3.0
    core.report(old)
    assert core.gauges().replicas[0].age_s == pytest.approx(3.0)


def test_gauges_tell_what_waits_and_who_is_not_as_usual() -> None:
    clock = FakeClock()
    a, b = FakeReplica("a"), FakeReplica("b", leaving=True)
    core = make_core(config=RouterConfig(settle_s=3.0, expecting=1), clock=clock)
    core.acquire(ticket("x", 4, most=9))
    core.acquire(ticket("y", 3))
    core.report(b.report())
    gauges = core.gauges()
    assert (gauges.queued, gauges.queued_blocks, gauges.settling) == (2, 7, True)
    core.report(a.report())
    core.unreachable("a")
    gauges = core.gauges()
    assert (gauges.queued, gauges.queued_blocks, gauges.settling) == (0, 0, False)
    assert [(r.replica, r.leaving, r.open) for r in gauges.replicas] == [
        ("b", True, False),
        ("a", False, True),
    ]
    assert [(r.unreachable, r.suspect) for r in gauges.replicas] == [(False, False), (True, True)]
