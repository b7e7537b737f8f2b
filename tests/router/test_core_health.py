"""Replicas that fall silent or cannot be reached: where requests go, and what is kept."""

from collections import Counter

import pytest

from router.core import RouterConfig, RouterCore
from router.ticket import Lost, Refusal
from tests.router.fake_cluster import (
    FakeClock,
    FakeReplica,
    fill,
    free_blocks,
    grants,
    make_core,
    pair,
    run,
    suspects,
    ticket,
    where,
)

LATE = RouterConfig(lookahead=0)


def _tick(core: RouterCore, clock: FakeClock, seconds: int, *alive: FakeReplica) -> None:
    """Let time pass as it does for a router that is awake: a tick a second."""
    for _ in range(seconds):
        clock.now += 1.0
        for replica in alive:
            core.report(replica.report())
        core.tick()


# Silence


def test_silent_replicas_that_work_are_placed_on_and_marked() -> None:
    clock = FakeClock()
    replicas = pair()
    core = make_core(*replicas.values(), config=RouterConfig(lookahead=0), clock=clock)
    live = fill(core)
    for name, replica in replicas.items():
        for ticket_id in live:
            if core._ledger.holder(ticket_id) == name:
                replica.submit(ticket_id, 50)
        replica.step()
        core.report(replica.report())
    placed = 0
    for second in range(5):  # from here on, no report
        clock.now += 1.0
        core.release(live.pop(0), finished=True)
        decided = where(core.acquire(ticket(f"new{second}", 50)))
        live += decided
        placed += len(decided)
        ages = [r.age_s for r in core.gauges().replicas]
        assert ages == [pytest.approx(second + 1.0)] * 2
    assert placed == 5
    assert all(r.suspect for r in core.gauges().replicas)


def test_a_silent_replica_is_tried_last_and_goes_on_taking_what_nobody_else_takes() -> None:
    clock = FakeClock()
    a, b = FakeReplica("a"), FakeReplica("b", total=60)
    core = make_core(a, b, config=LATE, clock=clock)
    _tick(core, clock, 5, b)  # a works, but its reports do not come
    gauges = {r.replica: (r.age_s, r.suspect) for r in core.gauges().replicas}
    assert gauges == {"a": (pytest.approx(5.0), True), "b": (pytest.approx(0.0), False)}
    placed = [where(core.acquire(ticket(str(i), 20)))[str(i)] for i in range(8)]
    assert placed == ["b"] * 3 + ["a"] * 5
    assert core.acquire(ticket("none", 20)) == []
    assert where(core.report(a.report())) == {}
    assert suspects(core) == set()


def test_lookahead_on_another_comes_before_a_fit_on_a_suspect() -> None:
    clock = FakeClock()
    a, b = FakeReplica("a"), FakeReplica("b", total=20)
    core = make_core(a, b, config=RouterConfig(lookahead=1), clock=clock)
    _tick(core, clock, 3, b)
    placed = [where(core.acquire(ticket(str(i), 20)))[str(i)] for i in range(3)]
    assert placed == ["b", "b", "a"]


def test_among_suspects_the_order_is_the_usual() -> None:
    clock = FakeClock()
    core = make_core(FakeReplica("a"), FakeReplica("b"), FakeReplica("c", total=99), clock=clock)
    clock.now += 10.0
    used = Counter(where(core.acquire(ticket(str(i), 10)))[str(i)] for i in range(20))
    assert used == {"a": 7, "b": 7, "c": 6}


def test_a_suspect_is_tried_last_by_tickets_that_few_replicas_can_hold() -> None:
    clock = FakeClock()
    small, a, b = FakeReplica("small", total=10), FakeReplica("a"), FakeReplica("b", total=90)
    core = make_core(small, a, b, config=RouterConfig(lookahead=1), clock=clock)
    _tick(core, clock, 3, small, b)
    placed = [where(core.acquire(ticket(str(i), 45, most=50)))[str(i)] for i in range(4)]
    assert placed == ["b", "b", "b", "a"]


def test_suspicion_needs_no_tick_and_ends_with_a_newer_report_only() -> None:
    clock = FakeClock()
    a, b = FakeReplica("a"), FakeReplica("b")
    core = make_core(a, b, clock=clock)
    old = a.report()
    core.report(a.report())
    clock.now += 2.5
    core.report(b.report())
    core.report(old)
    assert suspects(core) == {"a"}
    assert where(core.acquire(ticket("x"))) == {"x": "b"}
    core.report(a.report())
    assert suspects(core) == set()
    assert where(core.acquire(ticket("y"))) == {"y": "a"}


def test_a_prefill_that_gives_no_token_for_six_minutes_keeps_its_grant() -> None:
    clock = FakeClock()
    a, b = FakeReplica("a"), FakeReplica("b")
    core = make_core(a, b, clock=clock)
    run(core, a, "long", 80)
    for _ in range(360):
        _tick(core, clock, 1, a, b)
        assert core.silent() == ()
    assert grants(core) == {"a": 1, "b": 0}
    assert free_blocks(core) == {"a": 20, "b": 100}


def test_who_is_silent_for_too_long_is_named_and_nothing_else_happens() -> None:
    clock = FakeClock()
    a, b = FakeReplica("a"), FakeReplica("b")
    core = make_core(a, b, clock=clock)
    run(core, a, "x", 10)
    _tick(core, clock, 14, b)
    assert core.silent() == ()
    _tick(core, clock, 1, b)
    assert core.silent() == ("a",)
    assert grants(core) == {"a": 1, "b": 0}
    assert core.lost("a").tickets == ("x",)
    assert core.silent() == ()
    assert core.report(a.report(full=True)) == []  # it was a mistake
    assert core.silent() == ()
    assert suspects(core) == set()


def test_a_router_that_slept_for_a_minute_loses_nobody() -> None:
    clock = FakeClock()
    replicas = [FakeReplica(name) for name in ("a", "b", "c")]
    core = make_core(*replicas, clock=clock)
    _tick(core, clock, 3, *replicas)
    clock.now += 60.0
    assert core.silent() == ()  # asked before anything else
    core.tick()
    assert core.silent() == ()
    assert suspects(core) == set()
    core.report(replicas[0].report())  # the first to be heard does not get everything
    used = Counter(where(core.acquire(ticket(str(i))))[str(i)] for i in range(9))
    assert set(used.values()) == {3}
    _tick(core, clock, 14, replicas[0])
    assert core.silent() == ()
    assert suspects(core) == {"b", "c"}
    _tick(core, clock, 1, replicas[0])
    assert core.silent() == ("b", "c")


def test_a_suspect_stays_one_while_the_router_sleeps() -> None:
    clock = FakeClock()
    a, b = FakeReplica("a"), FakeReplica("b")
    core = make_core(a, b, clock=clock)
    _tick(core, clock, 4, b)
    clock.now += 60.0
    core.tick()
    assert suspects(core) == {"a"}


# Not reached


def test_who_cannot_be_reached_once_is_tried_last_and_keeps_its_grants() -> None:
    a, b = FakeReplica("a"), FakeReplica("b", total=50)
    core = make_core(a, b, config=LATE)
    run(core, a, "x", 10)
    assert core.unreachable("a") == Lost("a", (), [])
    assert suspects(core) == {"a"}
    assert [r.unreachable for r in core.gauges().replicas] == [True, False]
    assert grants(core) == {"a": 1, "b": 0}
    placed = [where(core.acquire(ticket(str(i), 25)))[str(i)] for i in range(3)]
    assert placed == ["b", "b", "a"]


def test_who_cannot_be_reached_twice_is_lost() -> None:
    a, b = FakeReplica("a"), FakeReplica("b")
    core = make_core(a, b, config=LATE)
    run(core, a, "x", 10)
    core.unreachable("a")
    assert core.unreachable("a") == Lost("a", ("x",), [])
    assert grants(core) == {"b": 0}
    assert core.unreachable("a") == Lost("a", (), [])  # nobody by that name any more
    placed = [where(core.acquire(ticket(str(i), 50))) for i in range(3)]
    assert placed == [{"0": "b"}, {"1": "b"}, {}]


def test_who_was_silent_is_not_lost_the_first_time_that_it_cannot_be_reached() -> None:
    clock = FakeClock()
    core = make_core(FakeReplica("a"), clock=clock)
    clock.now += 5.0
    assert suspects(core) == {"a"}
    core.unreachable("a")
    assert suspects(core) == {"a"}
    core.unreachable("a")
    assert core.gauges().replicas == ()


def test_a_report_in_between_ends_the_suspicion() -> None:
    a = FakeReplica("a")
    core = make_core(a)
    old = a.report()
    core.report(a.report())
    core.unreachable("a")
    core.report(a.report())
    assert suspects(core) == set()
    assert not core.gauges().replicas[0].unreachable
    core.unreachable("a")
    core.report(old)  # says nothing about now
    assert suspects(core) == {"a"}
    assert core.unreachable("a").tickets == ()
    assert core.gauges().replicas == ()


def test_losing_the_last_that_could_not_be_reached_tells_those_who_wait() -> None:
    core = make_core(FakeReplica("a"), config=LATE)
    core.acquire(ticket("runs", 100))
    core.acquire(ticket("waits", 100))
    core.unreachable("a")
    lost = core.unreachable("a")
    assert lost.tickets == ("runs",)
    assert [(d.ticket, type(d)) for d in lost.decisions] == [("waits", Refusal)]


def test_two_equal_replicas_leave_nobody_without_work_when_one_becomes_suspect() -> None:
    clock = FakeClock()
    replicas = pair()
    core = make_core(*replicas.values(), config=LATE, clock=clock)
    live = fill(core)
    assert len(live) == 4
    core.unreachable("a")
    assert core.acquire(ticket("next", 50)) == []
    assert set(where(core.release(live[0], finished=True)).values()) == {"a"}  # the only room
