"""Replicas that leave: they get nothing new, and keep what they have."""

import pytest

from router.core import RouterConfig
from router.errors import NeverFitsAnywhere, NoReplica
from router.ticket import Refusal
from tests.router.fake_cluster import (
    FakeReplica,
    free_blocks,
    grants,
    make_core,
    run,
    ticket,
    where,
)


def test_a_replica_that_leaves_gets_nothing_new_and_keeps_what_it_has() -> None:
    a, b = FakeReplica("a"), FakeReplica("b", total=20)
    core = make_core(a, b, config=RouterConfig(lookahead=1))
    run(core, a, "x", 10)
    a.leaving = True
    core.report(a.report())
    assert [r.leaving for r in core.gauges().replicas] == [True, False]
    placed = [where(core.acquire(ticket(str(i), 20))) for i in range(3)]
    assert placed == [{"0": "b"}, {"1": "b"}, {}]  # not as lookahead either
    assert grants(core) == {"a": 1, "b": 2}
    a.end("x")
    assert core.report(a.report()) == []
    assert grants(core) == {"a": 0, "b": 2}


def test_a_grant_under_way_to_a_replica_that_leaves_stays_charged() -> None:
    a = FakeReplica("a")
    core = make_core(a)
    core.acquire(ticket("x", 10))
    a.leaving = True
    core.report(a.report())
    assert free_blocks(core) == {"a": 90}
    assert core.bounced("x") == []  # it takes nothing any more
    assert core.gauges().queued == 1
    assert where(core.report(FakeReplica("successor").report())) == {"x": "successor"}


def test_tickets_wait_while_the_only_replica_leaves_and_are_told_when_it_has_gone() -> None:
    a = FakeReplica("a", leaving=True)
    core = make_core(a)
    assert core.acquire(ticket("x", 10)) == []
    assert core.acquire(ticket("large", 100)) == []
    with pytest.raises(NeverFitsAnywhere):
        core.acquire(ticket("huge", 101))
    decisions = core.lost("a").decisions
    assert [(d.ticket, type(d.error)) for d in decisions if isinstance(d, Refusal)] == [
        ("x", NoReplica),
        ("large", NoReplica),
    ]


def test_what_only_a_leaving_replica_could_hold_waits_for_its_successor_or_its_end() -> None:
    for successor in (True, False):
        small, large = FakeReplica("small", total=50), FakeReplica("large", leaving=True)
        core = make_core(small, large)
        assert core.acquire(ticket("x", 10, most=100)) == []
        if successor:
            assert where(core.report(FakeReplica("next").report())) == {"x": "next"}
        assert [d.ticket for d in core.lost("large").decisions] == ([] if successor else ["x"])


def test_a_replica_that_stays_after_all_is_one_like_others() -> None:
    a = FakeReplica("a", leaving=True)
    core = make_core(a)
    core.acquire(ticket("x"))
    leaving = a.report()
    a.leaving = False
    assert where(core.report(a.report())) == {"x": "a"}
    core.report(leaving)  # late: it is no longer so
    assert where(core.acquire(ticket("y"))) == {"y": "a"}
