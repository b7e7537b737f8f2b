"""Where requests go: the faults that users of such routers reported, as small cases."""

from collections import Counter
from random import Random

import pytest

from engine.rank import SchedPolicy
from router.core import RouterConfig, RouterCore
from router.errors import Busy, NeverFitsAnywhere, NoReplica, RouterError, UnknownTicket
from router.ticket import Refusal
from tests.router.fake_cluster import (
    FakeClock,
    FakeReplica,
    free_blocks,
    grants,
    make_core,
    ticket,
    where,
)


def _pair() -> dict[str, FakeReplica]:
    return {name: FakeReplica(name) for name in ("a", "b")}


def _fill(core: RouterCore, count: int = 100, blocks: int = 50) -> list[str]:
    """Acquire until one waits; return the ids that were placed."""
    placed: list[str] = []
    for i in range(count):
        if not core.acquire(ticket(f"fill{i}", blocks)):
            core.release(f"fill{i}")
            return placed
        placed.append(f"fill{i}")
    raise AssertionError("never full")


# Spreading


def test_a_burst_between_two_reports_does_not_herd() -> None:
    replicas = _pair()
    core = make_core(*replicas.values())
    for i in range(40):
        for ticket_id, name in where(core.acquire(ticket(str(i), 5))).items():
            assert replicas[name].submit(ticket_id, 5), "QueueFull"
    assert grants(core) == {"a": 20, "b": 20}


def test_one_huge_request_counts_as_much_as_it_holds() -> None:
    core = make_core(*(FakeReplica(name, total=1000) for name in ("a", "b")))
    huge = where(core.acquire(ticket("huge", 500)))["huge"]
    small = [where(core.acquire(ticket(str(i), 10)))[str(i)] for i in range(20)]
    assert huge not in small


def test_equal_replicas_are_all_used_by_requests_that_come_one_by_one() -> None:
    core = make_core(*(FakeReplica(str(i)) for i in range(5)))
    used = Counter[str]()
    for i in range(50):
        used.update(where(core.acquire(ticket(str(i)))).values())
        core.release(str(i), finished=True)
    assert set(used.values()) == {10}


def test_ties_go_to_fewer_grants() -> None:
    core = make_core(FakeReplica("a"), FakeReplica("b"))
    for ticket_id, blocks in (("one", 10), ("two", 5), ("three", 5)):
        core.acquire(ticket(ticket_id, blocks))
    core.release("one")
    assert where(core.acquire(ticket("one", 10))) == {"one": "a"}  # so b is next in the round
    assert free_blocks(core) == {"a": 90, "b": 90}
    assert grants(core) == {"a": 1, "b": 2}
    assert where(core.acquire(ticket("next", 1))) == {"next": "a"}


# What stays charged


def test_a_prefill_of_six_minutes_stays_charged() -> None:
    clock = FakeClock()
    a, b = FakeReplica("a"), FakeReplica("b")
    core = make_core(a, b, clock=clock)
    core.acquire(ticket("long", 80))
    for _ in range(360):
        clock.now += 1.0
        core.report(a.report())
        core.report(b.report())
    assert free_blocks(core) == {"a": 20, "b": 100}


def test_streams_are_charged_to_their_last_token() -> None:
    replica = FakeReplica("a")
    core = make_core(replica, config=RouterConfig(lookahead=0))
    for i in range(10):
        core.acquire(ticket(str(i), 10))
        replica.submit(str(i), 10)
    replica.step()
    for _ in range(5):  # headers and tokens have long gone out
        core.report(replica.report())
        assert free_blocks(core) == {"a": 0}
        assert grants(core) == {"a": 10}
    assert core.acquire(ticket("next", 10)) == []
    replica.end("3")
    assert where(core.report(replica.report())) == {"next": "a"}


def test_five_hundred_cancels_at_every_point_leave_no_grant() -> None:
    replica = FakeReplica("a", total=60)
    core = make_core(replica, config=RouterConfig(max_queued=500))
    rng = Random(3)
    for i in range(500):
        key = str(i)
        placed = key in where(core.acquire(ticket(key, rng.randint(1, 9), priority=i % 3)))
        point = rng.randrange(6)
        if placed and point > 0:
            replica.submit(key, 5)
        if placed and point > 1:
            replica.step()
        if point > 2:
            core.report(replica.report())
        if placed and point > 3:
            replica.end(key)
        if point > 4:
            core.report(replica.report())
        replica.end(key)
        core.release(key, finished=point == 4)
        core.release(key)
    for key in replica.held:
        replica.end(key)
    core.report(replica.report())
    gauges = core.gauges()
    assert gauges.queued == 0
    assert gauges.replicas[0].grants == 0
    assert free_blocks(core) == {"a": 60}


# Health


def test_silent_replicas_that_work_are_placed_on_and_marked() -> None:
    clock = FakeClock()
    replicas = _pair()
    core = make_core(*replicas.values(), config=RouterConfig(lookahead=0), clock=clock)
    live = _fill(core)
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


def test_refusals_never_count_against_a_replica() -> None:
    replica = FakeReplica("a")
    core = make_core(replica)
    for i in range(20):
        assert where(core.acquire(ticket(f"full{i}"))) == {f"full{i}": "a"}
        assert core.bounced(f"full{i}") == []
        assert where(core.report(replica.report())) == {f"full{i}": "a"}
        core.release(f"full{i}")
        core.acquire(ticket(f"bad{i}"))
        core.release(f"bad{i}")
    assert core.gauges().replicas[0].open
    assert free_blocks(core) == {"a": 100}


def test_a_replica_that_said_queue_full_gets_nothing_before_its_next_report() -> None:
    replicas = _pair()
    core = make_core(*replicas.values())
    old = replicas["a"].report()
    core.report(replicas["a"].report())
    assert where(core.acquire(ticket("x"))) == {"x": "a"}
    assert where(core.bounced("x")) == {"x": "b"}
    assert set(where(core.acquire(ticket("y"))).values()) == {"b"}
    core.report(old)  # older than the QueueFull
    core.report(replicas["b"].report())
    assert set(where(core.acquire(ticket("z"))).values()) == {"b"}
    core.report(replicas["a"].report())
    assert set(where(core.acquire(ticket("w"))).values()) == {"a"}


# Order


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
    replicas = _pair()
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
    core = make_core(*_pair().values(), config=RouterConfig(lookahead=0, max_queued=0))
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


# No


def test_without_a_replica_the_answer_is_503_not_429() -> None:
    core = make_core(config=RouterConfig(max_queued=0))
    with pytest.raises(NoReplica) as caught:
        core.acquire(ticket("x"))
    assert 1.0 <= caught.value.retry_after <= 60.0


def test_requests_wait_for_a_replica_that_is_coming_up() -> None:
    core = make_core(config=RouterConfig(expecting=2, max_queued=2))
    assert core.acquire(ticket("x", 5)) == []
    assert core.acquire(ticket("huge", 500)) == []
    with pytest.raises(Busy):
        core.acquire(ticket("y"))
    decisions = core.report(FakeReplica("a").report())
    assert [d.ticket for d in decisions] == ["huge", "x"]
    assert isinstance(decisions[0], Refusal)
    assert isinstance(decisions[0].error, NeverFitsAnywhere)
    assert where(decisions[1:]) == {"x": "a"}


def test_when_hope_for_a_replica_ends_those_that_wait_are_told() -> None:
    core = make_core(config=RouterConfig(expecting=1))
    core.acquire(ticket("x"))
    core.acquire(ticket("y"))
    decisions = core.expect(0)
    assert [(d.ticket, type(d.error)) for d in decisions if isinstance(d, Refusal)] == [
        ("x", NoReplica),
        ("y", NoReplica),
    ]
    with pytest.raises(NoReplica):
        core.acquire(ticket("z"))
    core.expect(1)
    assert core.acquire(ticket("z")) == []


def test_the_loss_of_the_last_replica_refuses_or_holds_as_expected() -> None:
    for expecting in (0, 1):
        core = make_core(FakeReplica("a"), config=RouterConfig(expecting=expecting))
        _fill(core)
        core.acquire(ticket("waits", 50))
        refused = [decision.ticket for decision in core.lost("a").decisions]
        assert refused == ([] if expecting else ["waits"])
        assert core.gauges().queued == expecting


def test_what_can_never_fit_is_refused_at_once_and_blocks_nobody() -> None:
    core = make_core(FakeReplica("a"), FakeReplica("b", total=120))
    with pytest.raises(NeverFitsAnywhere) as caught:
        core.acquire(ticket("x", 10, most=121))
    assert (caught.value.blocks, caught.value.total) == (121, 120)
    assert where(core.acquire(ticket("y", 10, most=120))) == {"y": "b"}


def test_losing_the_only_large_replica_does_not_block_the_queue_for_ever() -> None:
    small, large = FakeReplica("small", total=50), FakeReplica("large", total=100)
    core = make_core(small, large, config=RouterConfig(lookahead=0))
    core.acquire(ticket("on-large", 100))
    core.acquire(ticket("head", 10, most=100))
    core.acquire(ticket("next", 10))
    decisions = core.lost("large").decisions
    assert [d.ticket for d in decisions] == ["head", "next"]
    assert isinstance(decisions[0], Refusal)
    assert where(decisions[1:]) == {"next": "small"}


def test_a_full_queue_says_busy_but_never_to_what_can_go_at_once() -> None:
    replicas = _pair()
    core = make_core(*replicas.values(), config=RouterConfig(lookahead=0, max_queued=3))
    core.acquire(ticket("p", 100))
    core.acquire(ticket("q", 60))
    for i in range(3):
        assert core.acquire(ticket(f"wait{i}", 100)) == []
    with pytest.raises(Busy) as caught:
        core.acquire(ticket("x", 10))
    assert (caught.value.queued, caught.value.limit) == (3, 3)
    assert 1.0 <= caught.value.retry_after <= 60.0
    with pytest.raises(Busy):
        core.acquire(ticket("urgent", 100, priority=10))
    assert where(core.acquire(ticket("urgent", 40, priority=10))) == {"urgent": "b"}
    assert core.gauges().busy_total == 2
    core.release("wait1")
    assert core.acquire(ticket("x", 10)) == []


def test_no_queue_at_all_still_serves_what_fits() -> None:
    core = make_core(FakeReplica("a"), config=RouterConfig(lookahead=0, max_queued=0))
    assert where(core.acquire(ticket("x", 100))) == {"x": "a"}
    with pytest.raises(Busy):
        core.acquire(ticket("y", 1))


def test_retry_after_follows_the_measured_rate_and_the_length_of_the_queue() -> None:
    waits = []
    for queued in (20, 200):
        clock = FakeClock()
        config = RouterConfig(lookahead=0, max_queued=queued)
        core = make_core(FakeReplica("a", total=1), config=config, clock=clock)
        core.acquire(ticket("0", 1))
        for i in range(1, queued + 1):
            core.acquire(ticket(str(i), 1))
        for i in range(100):  # ten a second
            clock.now += 0.1
            core.release(str(i), finished=True)
            core.acquire(ticket(str(queued + 1 + i), 1))
        seen = []
        for _ in range(50):
            with pytest.raises(Busy) as caught:
                core.acquire(ticket("x", 1))
            seen.append(caught.value.retry_after)
        assert len(set(seen)) == 50
        waits.append(sum(seen) / len(seen))
    assert waits[0] == pytest.approx(2, rel=0.3)
    assert waits[1] == pytest.approx(20, rel=0.3)


# The rest


def test_the_same_calls_get_the_same_answers() -> None:
    def script() -> list[object]:
        clock, rng = FakeClock(), Random(5)
        replicas = {str(i): FakeReplica(str(i), total=rng.randint(20, 60)) for i in range(7)}
        config = RouterConfig(max_queued=10)
        core = make_core(*replicas.values(), config=config, clock=clock, seed=9)
        answers: list[object] = []
        for i in range(600):
            clock.now += rng.random()
            name = str(rng.randrange(7))
            try:
                answers += core.acquire(ticket(str(i), rng.randint(1, 15), priority=i % 4))
            except RouterError as error:
                answers.append((type(error), error.args))
            answers += core.report(replicas[name].report())
            answers += core.release(str(rng.randrange(i + 1)), finished=i % 2 == 0)
        return answers

    assert script() == script()


@pytest.mark.parametrize(
    "wrong",
    [
        {"aging_ms": -1},
        {"lookahead": -1},
        {"max_queued": -1},
        {"expecting": -1},
        {"retry_min_s": 0.0},
        {"retry_min_s": 70.0},
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RouterConfig(**wrong)  # type: ignore[arg-type]


def test_a_thousand_replicas_take_a_burst_evenly_and_fast() -> None:
    core = make_core(*(FakeReplica(str(i), total=400) for i in range(1000)))
    for i in range(20_000):
        core.acquire(ticket(str(i), 5))
    assert set(grants(core).values()) == {20}
