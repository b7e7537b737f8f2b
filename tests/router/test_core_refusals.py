"""When the answer is no, which no it is, and when to come back."""

import pytest

from router.core import RouterConfig
from router.errors import Busy, NeverFitsAnywhere, NoReplica
from router.ticket import Refusal
from tests.router.fake_cluster import (
    FakeClock,
    FakeReplica,
    fill,
    make_core,
    pair,
    ticket,
    where,
)


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
        fill(core)
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
    replicas = pair()
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
