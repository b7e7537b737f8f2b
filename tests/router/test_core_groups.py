"""Tickets that belong together: all of them or none."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core import RouterConfig, RouterCore
from router.errors import Busy, NeverFitsAnywhere, NoReplica
from router.ticket import Placement, Refusal, Ticket
from tests.router.fake_cluster import (
    FakeClock,
    FakeReplica,
    free_blocks,
    grants,
    make_core,
    ticket,
    where,
)


def group(count: int, blocks: int = 50, **more: int) -> list[Ticket]:
    return [replace(ticket(f"g{i}", blocks, **more), call="g0") for i in range(count)]


def full(max_queued: int) -> RouterCore:
    """A core whose replica is full and whose queue is empty."""
    core = make_core(FakeReplica("a"), config=RouterConfig(lookahead=0, max_queued=max_queued))
    core.acquire(ticket("running", 100))
    return core


def test_four_choices_and_three_seats_in_the_queue_are_all_refused() -> None:
    """vllm PR#53936: three of the four were let in, and their answers thrown away."""
    core = full(max_queued=3)
    with pytest.raises(Busy) as caught:
        core.acquire_all(group(4))
    assert (caught.value.queued, caught.value.limit) == (0, 3)
    assert core.gauges().queued == 0
    assert core.acquire_all(group(3)) == []
    assert core.gauges().queued == 3


def test_those_that_can_go_at_once_need_no_place_in_the_queue() -> None:
    core = make_core(FakeReplica("a"), config=RouterConfig(lookahead=0, max_queued=2))
    placed = where(core.acquire_all(group(4)))
    assert (placed, core.gauges().queued) == ({"g0": "a", "g1": "a"}, 2)


def test_what_was_placed_of_a_refused_group_is_taken_back() -> None:
    core = make_core(FakeReplica("a"), config=RouterConfig(lookahead=0, max_queued=1))
    with pytest.raises(Busy):
        core.acquire_all(group(4))
    assert (free_blocks(core), grants(core)) == ({"a": 100}, {"a": 0})
    gauges = core.gauges()
    assert (gauges.queued, gauges.placed_total, gauges.busy_total) == (0, 0, 1)


def test_one_that_never_fits_refuses_all() -> None:
    core = make_core(FakeReplica("a"))
    with pytest.raises(NeverFitsAnywhere):
        core.acquire_all([*group(2), replace(ticket("huge", 101), call="g0")])
    assert grants(core) == {"a": 0}
    with pytest.raises(NoReplica):
        make_core().acquire_all(group(2))


def test_a_group_that_had_its_places_is_let_in_again() -> None:
    """The router restarted between the admission and the first question."""
    core = full(max_queued=0)
    assert core.acquire_all([replace(one, again=True) for one in group(3)]) == []
    # And asking twice leaves one place for each.
    assert core.acquire_all(group(3)) == []
    assert core.gauges().queued == 3


def test_a_group_waits_while_the_router_settles_or_is_refused_whole() -> None:
    config = RouterConfig(settle_s=3.0, expecting=2, max_queued=3)
    core = make_core(FakeReplica("a"), config=config)
    with pytest.raises(Busy):
        core.acquire_all(group(4))
    assert core.acquire_all(group(3)) == []


def test_a_refused_group_does_not_hide_what_was_decided_about_others() -> None:
    clock = FakeClock()
    config = RouterConfig(lookahead=0, max_queued=2)
    core = make_core(FakeReplica("a"), config=config, clock=clock)
    core.acquire(ticket("running", 60))
    core.acquire(replace(ticket("hasty", 50), start_within_s=1.0))
    core.acquire(ticket("small", 40))
    clock.now += 1.0
    decisions = core.acquire_all(group(4, blocks=100))
    refused = [one.ticket for one in decisions if isinstance(one, Refusal)]
    assert refused == ["hasty", "g0", "g1", "g2", "g3"]
    assert [one for one in decisions if isinstance(one, Placement)] == [Placement("small", "a")]
    assert core.gauges().queued == 0


_Sizes = st.tuples(st.integers(0, 2), st.lists(st.integers(1, 6), min_size=1, max_size=5))


@settings(max_examples=150, deadline=None)
@given(st.lists(_Sizes, max_size=4), _Sizes, st.integers(0, 4), st.integers(0, 2))
def test_all_or_none_and_none_leaves_no_trace(
    before: list[tuple[int, list[int]]],
    sizes: tuple[int, list[int]],
    max_queued: int,
    lookahead: int,
) -> None:
    """A refused group is as if it had never been; one that is let in is as if asked one by one."""
    config = RouterConfig(lookahead=lookahead, max_queued=max_queued)
    cores = [RouterCore(config, FakeClock(), Random(0)) for _ in range(2)]
    for core in cores:
        core.report(FakeReplica("a", total=12, max_seqs=3).report())
        for number, one in enumerate(before):
            try:
                core.acquire_all(_tickets(f"b{number}.", one))
            except Busy:
                continue
    core, other = cores
    shown = core.gauges()
    tickets = _tickets("g", sizes)
    try:
        decisions = core.acquire_all(tickets)
    except Busy:
        after = core.gauges()
        assert replace(after, busy_total=shown.busy_total) == shown
        assert len(tickets) + shown.queued > max_queued
        return
    singly = [d for one in tickets for d in other.acquire(replace(one, again=True))]
    assert set(where(decisions)) == set(where(singly))
    assert core.gauges().queued == other.gauges().queued


def _tickets(name: str, sizes: tuple[int, list[int]]) -> list[Ticket]:
    priority, blocks = sizes
    return [
        replace(ticket(f"{name}{i}", one, priority=priority), call=name)
        for i, one in enumerate(blocks)
    ]
