"""Kinds of replicas: part of an answer goes on only where the same bits come out."""

from router.core import RouterConfig
from router.errors import NoReplica
from router.ticket import Refusal
from tests.router.fake_cluster import FakeReplica, grants, make_core, run, ticket, where

CONFIG = RouterConfig(lookahead=0)


def test_part_of_an_answer_goes_on_with_its_kind_though_others_have_more_room() -> None:
    """A redeploy with another number format: old and new replicas stand side by side."""
    old, new = FakeReplica("old", total=10, kind="f"), FakeReplica("new", kind="g")
    core = make_core(old, new, config=CONFIG)
    assert where(core.acquire(ticket("any", 5))) == {"any": "new"}
    assert where(core.acquire(ticket("part", 5, again=True, kind="f"))) == {"part": "old"}
    assert where(core.acquire(ticket("other", 5, again=True, kind="g"))) == {"other": "new"}


def test_among_its_own_it_goes_to_the_freest() -> None:
    ours = [FakeReplica(name, total, kind="f") for name, total in [("a", 10), ("b", 30), ("c", 20)]]
    core = make_core(*ours, FakeReplica("new", kind="g"), config=CONFIG)
    placed = [where(core.acquire(ticket(str(i), 10, again=True, kind="f"))) for i in range(4)]
    assert placed == [{"0": "b"}, {"1": "c"}, {"2": "b"}, {"3": "a"}]


def test_where_all_are_of_one_kind_it_waits_like_any_other() -> None:
    a = FakeReplica("a", total=10, kind="f")
    core = make_core(a, config=CONFIG)
    run(core, a, "x", 10)
    assert core.acquire(ticket("part", 5, again=True, kind="f")) == []
    a.end("x")
    assert where(core.report(a.report())) == {"part": "a"}


def test_what_only_some_could_take_does_not_hold_up_the_rest() -> None:
    """Its caller asks again; meanwhile the others are not idle."""
    a, b = FakeReplica("a", total=10, kind="f"), FakeReplica("b", total=10, kind="g")
    core = make_core(a, b, config=CONFIG)
    run(core, a, "x", 10)
    run(core, b, "y", 10)
    (refused,) = core.acquire(ticket("part", 5, priority=9, again=True, kind="f"))
    assert isinstance(refused, Refusal)
    assert isinstance(refused.error, NoReplica)
    assert core.acquire(ticket("any", 5)) == []
    b.end("y")
    assert where(core.report(b.report())) == {"any": "b"}
    assert grants(core) == {"a": 1, "b": 1}


def test_one_that_waits_is_told_when_another_kind_comes() -> None:
    a = FakeReplica("a", total=10, kind="f")
    core = make_core(a, config=CONFIG)
    run(core, a, "x", 10)
    core.acquire(ticket("part", 5, again=True, kind="f"))
    core.acquire(ticket("any", 5))
    refused, placed = core.report(FakeReplica("b", total=10, kind="g").report())
    assert isinstance(refused, Refusal)
    assert refused.ticket == "part"
    assert where([placed]) == {"any": "b"}


def test_it_makes_nobody_way_on_another_kind() -> None:
    """With admission preemption, the least urgent may run where it cannot go."""
    a, b = FakeReplica("a", total=10, kind="f"), FakeReplica("b", total=10, kind="g")
    core = make_core(a, b, config=RouterConfig(lookahead=0, admission_preemption=2))
    run(core, a, "x", 10, priority=1)
    run(core, b, "y", 10, priority=0)
    urgent = ticket("part", 5, priority=5, again=True, kind="f")
    assert where(core.acquire(urgent)) == {"part": "a"}
