"""A router that starts again while replicas run: it listens before it places."""

from collections import Counter

import pytest

from router.core import RouterConfig, RouterCore
from router.errors import Busy, NeverFitsAnywhere, NoReplica
from router.ticket import Placement, Refusal
from tests.router.fake_cluster import (
    FakeClock,
    FakeReplica,
    free_blocks,
    grants,
    make_core,
    ticket,
    where,
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def replicas() -> list[FakeReplica]:
    """Three that have run for a while: each holds 30 blocks."""
    three = [FakeReplica(name) for name in ("a", "b", "c")]
    for replica in three:
        replica.report()
        replica.submit(f"on-{replica.name}", 30)
        replica.step()
    return three


def _restarted(clock: FakeClock, **settings: float) -> RouterCore:
    config = {"settle_s": 3.0, "expecting": 3, "lookahead": 0, **settings}
    return make_core(config=RouterConfig(**config), clock=clock)  # type: ignore[arg-type]


def test_a_restarted_router_waits_for_the_replica_that_reports_late(
    clock: FakeClock, replicas: list[FakeReplica]
) -> None:
    core = _restarted(clock)
    a, b, c = replicas
    for i in range(12):
        assert core.acquire(ticket(str(i), 10, priority=i, again=True)) == []
    assert core.report(a.report(full=True)) == []
    clock.now += 1.0
    assert core.report(b.report(full=True)) == []
    assert core.settling
    clock.now += 1.0
    decisions = core.report(c.report(full=True))
    assert not core.settling
    assert [d.ticket for d in decisions] == [str(i) for i in reversed(range(12))]
    assert Counter(where(decisions).values()) == {"a": 4, "b": 4, "c": 4}
    assert free_blocks(core) == {"a": 30, "b": 30, "c": 30}
    assert grants(core) == {"a": 5, "b": 5, "c": 5}


def test_it_waits_no_longer_than_it_was_told(clock: FakeClock, replicas: list[FakeReplica]) -> None:
    core = _restarted(clock)
    core.tick()
    clock.now += 60.0  # nobody has reported: the time has not begun
    assert core.acquire(ticket("x", again=True)) == []
    core.report(replicas[0].report(full=True))
    clock.now += 2.9
    assert core.tick() == []
    assert core.report(replicas[0].report()) == []
    assert core.settling
    clock.now += 0.1
    assert where(core.tick()) == {"x": "a"}
    assert not core.settling


def test_any_call_notices_that_the_time_is_over(replicas: list[FakeReplica]) -> None:
    full = replicas[0].report(full=True)
    for call in (
        lambda core: core.acquire(ticket("y", priority=-1)),
        lambda core: core.release("unknown"),
        lambda core: core.report(full),
        lambda core: core.bounced("x"),
        lambda core: core.lost("unknown").decisions,
        lambda core: core.unreachable("a").decisions,
        lambda core: core.expect(3),
        lambda core: core.tick(),
    ):
        clock = FakeClock()
        core = _restarted(clock)
        core.report(full)
        assert core.acquire(ticket("x")) == []
        clock.now += 3.0
        assert where(call(core))["x"] == "a"
        assert not core.settling


def test_a_report_that_is_not_full_starts_the_time_but_does_not_count(
    clock: FakeClock, replicas: list[FakeReplica]
) -> None:
    core = _restarted(clock, expecting=1)
    core.acquire(ticket("x"))
    assert core.report(replicas[0].report()) == []
    assert core.wants_full_report("a")
    assert core.settling
    assert where(core.report(replicas[0].report(full=True))) == {"x": "a"}


def test_a_replica_that_leaves_is_not_one_of_those_expected(
    clock: FakeClock, replicas: list[FakeReplica]
) -> None:
    core = _restarted(clock, expecting=2)
    replicas[0].leaving = True
    core.report(replicas[0].report(full=True))
    core.report(replicas[1].report(full=True))
    assert core.settling
    core.report(replicas[2].report(full=True))
    assert not core.settling


def test_fewer_expected_may_end_it(clock: FakeClock, replicas: list[FakeReplica]) -> None:
    core = _restarted(clock)
    core.acquire(ticket("x"))
    core.report(replicas[0].report(full=True))
    assert where(core.expect(1)) == {"x": "a"}


def test_when_nobody_says_how_many_only_the_time_ends_it(
    clock: FakeClock, replicas: list[FakeReplica]
) -> None:
    core = _restarted(clock, expecting=0)
    for replica in replicas:
        core.report(replica.report(full=True))
    assert core.settling
    clock.now += 3.0
    core.tick()
    assert not core.settling


def test_the_loss_of_the_first_to_report_does_not_start_the_time_again(
    clock: FakeClock, replicas: list[FakeReplica]
) -> None:
    core = _restarted(clock)
    core.acquire(ticket("x"))
    core.report(replicas[0].report(full=True))
    clock.now += 2.0
    assert core.lost("a").tickets == ("on-a",)
    clock.now += 2.0
    assert where(core.report(replicas[1].report(full=True))) == {"x": "b"}


def test_while_it_settles_only_those_who_had_a_place_exceed_the_queue(
    clock: FakeClock, replicas: list[FakeReplica]
) -> None:
    core = _restarted(clock, max_queued=2)
    for i in range(4):
        assert core.acquire(ticket(f"old{i}", again=True)) == []
    core.report(replicas[0].report(full=True))
    with pytest.raises(Busy) as caught:
        core.acquire(ticket("new", priority=10))  # it would fit, and go first
    assert (caught.value.queued, caught.value.limit) == (4, 2)
    assert core.gauges().queued == 4
    clock.now += 3.0
    assert len(where(core.tick())) == 4


def test_the_word_of_a_small_replica_does_not_refuse_what_fits_a_larger(
    clock: FakeClock, replicas: list[FakeReplica]
) -> None:
    core = _restarted(clock)
    for ticket_id, most in (("fits-large", 150), ("fits-none", 300)):
        assert core.acquire(ticket(ticket_id, 10, most=most)) == []
    assert core.report(replicas[0].report(full=True)) == []
    assert core.acquire(ticket("late", 10, most=250)) == []
    assert core.report(replicas[1].report(full=True)) == []
    decisions = core.report(FakeReplica("large", total=200).report())
    assert [(d.ticket, type(d)) for d in decisions] == [
        ("fits-none", Refusal),
        ("late", Refusal),
        ("fits-large", Placement),
    ]
    assert isinstance(decisions[0], Refusal)
    assert decisions[0].error.args == NeverFitsAnywhere(300, 200).args
    with pytest.raises(NeverFitsAnywhere):
        core.acquire(ticket("huge", 300))


def test_without_a_replica_that_is_expected_it_says_503_as_ever(clock: FakeClock) -> None:
    core = _restarted(clock, expecting=1)
    core.acquire(ticket("x"))
    assert [type(d) for d in core.expect(0)] == [Refusal]
    with pytest.raises(NoReplica):
        core.acquire(ticket("y"))


def test_once_settled_is_settled(clock: FakeClock, replicas: list[FakeReplica]) -> None:
    core = _restarted(clock, expecting=1)
    core.report(replicas[0].report(full=True))
    core.lost("a")
    assert core.acquire(ticket("x")) == []
    assert where(core.report(replicas[1].report(full=True))) == {"x": "b"}
    assert not core.settling


def test_by_default_nothing_settles() -> None:
    core = make_core(config=RouterConfig(expecting=3))
    assert not core.settling
    core.acquire(ticket("x"))
    assert where(core.report(FakeReplica("a").report())) == {"x": "a"}
