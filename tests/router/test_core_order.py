"""Who goes first, and that nobody loses a place."""

import pytest

from engine.rank import SchedPolicy
from router.core import RouterConfig
from router.errors import UnknownTicket
from tests.router.fake_cluster import (
    FakeClock,
    FakeReplica,
    free_blocks,
    grants,
    make_core,
    pair,
    ticket,
    where,
)


def test_the_head_that_fits_nowhere_is_not_passed() -> None:
    replica = FakeReplica("a")
    core = make_core(replica, config=RouterConfig(lookahead=0))
    core.acquire(ticket("running", 60))
    assert core.acquire(ticket("head", 50)) == []
    assert core.acquire(ticket("small", 1)) == []
    assert where(core.release("running", finished=True)) == {"head": "a", "small": "a"}


def test_a_more_urgent_one_goes_first_though_it_came_last() -> None:
    core = make_core(FakeReplica("a"), config=RouterConfig(lookahead=0))
    core.acquire(ticket("running", 100))
    for i in range(3):
        core.acquire(ticket(f"low{i}", 100))
    core.acquire(ticket("high", 100, priority=10))
    assert where(core.release("running", finished=True)) == {"high": "a"}


def test_fcfs_ignores_priority() -> None:
    config = RouterConfig(lookahead=0, policy=SchedPolicy.FCFS)
    core = make_core(FakeReplica("a"), config=config)
    core.acquire(ticket("running", 100))
    core.acquire(ticket("low", 100, arrival=1))
    core.acquire(ticket("high", 100, arrival=2, priority=10))
    assert where(core.release("running", finished=True)) == {"low": "a"}


def test_equal_tickets_go_in_the_order_they_came() -> None:
    core = make_core(FakeReplica("a"), config=RouterConfig(lookahead=0))
    core.acquire(ticket("running", 100))
    for i in range(12):
        core.acquire(ticket(str(i), 1))
    assert list(where(core.release("running"))) == [str(i) for i in range(12)]


@pytest.mark.parametrize(("aging_ms", "starts"), [(4_000, True), (10**9, False)])
def test_steady_urgent_load_delays_others_by_priority_times_aging_at_most(
    aging_ms: int, starts: bool
) -> None:
    clock = FakeClock()
    replica = FakeReplica("a", total=1)
    core = make_core(
        replica, config=RouterConfig(aging_ms=aging_ms, lookahead=0, max_queued=500), clock=clock
    )
    running = "urgent-first"
    core.acquire(ticket(running, 1, priority=10))
    core.acquire(ticket("patient", 1, arrival=0))
    started_at = None
    for second in range(1, 200):  # every request takes one second, one urgent one comes a second
        clock.now += 1.0
        decisions = core.acquire(ticket(f"u{second}", 1, priority=10, arrival=second * 1000))
        assert decisions == []
        (running,) = where(core.release(running, finished=True))
        if running == "patient":
            started_at = second
            break
    assert (started_at is not None) is starts
    if started_at is not None:
        assert 30 < started_at <= 10 * 4 + 1


def test_a_bounced_ticket_keeps_its_place() -> None:
    replica = FakeReplica("a")
    core = make_core(replica, config=RouterConfig(lookahead=0, max_queued=2))
    core.acquire(ticket("x", 100, arrival=5))
    for i in range(2):
        core.acquire(ticket(f"later{i}", 100, arrival=5))
    assert core.bounced("x") == []  # the queue is full, but x had a place
    assert core.gauges().queued == 3
    assert core.bounced("x") == []
    assert where(core.report(replica.report())) == {"x": "a"}


def test_a_ticket_of_a_lost_replica_goes_before_those_that_came_after_it() -> None:
    replicas = pair()
    core = make_core(*replicas.values(), config=RouterConfig(lookahead=0, max_queued=2))
    for i in range(2):
        core.acquire(ticket(f"first{i}", 100, arrival=i))
    for i in range(2):
        core.acquire(ticket(f"later{i}", 100, arrival=10 + i))
    lost = core.lost("a")
    assert lost.tickets == ("first0",)
    assert lost.decisions == []
    assert core.acquire(ticket("first0-again", 100, arrival=0, again=True)) == []
    assert where(core.release("first1", finished=True)) == {"first0-again": "b"}


def test_asking_twice_for_one_ticket_leaves_one_grant() -> None:
    core = make_core(*pair().values(), config=RouterConfig(lookahead=0, max_queued=0))
    core.acquire(ticket("x", 30))
    core.acquire(ticket("x", 30))
    assert sum(grants(core).values()) == 1
    core.release("x")
    assert free_blocks(core) == {"a": 100, "b": 100}


def test_asking_twice_while_waiting_keeps_one_place() -> None:
    core = make_core(FakeReplica("a"), config=RouterConfig(lookahead=0, max_queued=1))
    core.acquire(ticket("running", 100))
    assert core.acquire(ticket("x", 30)) == []
    assert core.acquire(ticket("x", 30)) == []
    assert core.gauges().queued == 1
    assert where(core.release("running")) == {"x": "a"}
    core.release("x")
    assert grants(core) == {"a": 0}


def test_a_bounce_that_the_core_knows_nothing_of_is_not_swallowed() -> None:
    core = make_core(FakeReplica("a"))
    core.acquire(ticket("x"))
    core.lost("a")
    with pytest.raises(UnknownTicket):
        core.bounced("x")
