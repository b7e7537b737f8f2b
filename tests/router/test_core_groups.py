"""Tickets that belong together: all of them or none."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core import RouterConfig, RouterCore
from router.errors import Busy, NeverFitsAnywhere, NoReplica, TooManyTogether
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
    core = make_core(FakeReplica("a", total=150), config=RouterConfig(lookahead=0, max_queued=1))
    core.acquire(ticket("running", 50))
    with pytest.raises(Busy):
        core.acquire_all(group(4))
    assert (free_blocks(core), grants(core)) == ({"a": 100}, {"a": 1})
    gauges = core.gauges()
    assert (gauges.queued, gauges.placed_total, gauges.busy_total) == (0, 1, 1)


@pytest.mark.parametrize(
    ("replica", "most"),
    [
        (FakeReplica("a", total=30), 3),
        (FakeReplica("a", total=39, max_seqs=2), 2),
        (FakeReplica("a", max_waiting=1), 1),
    ],
)
@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("max_queued", [0, 2])
def test_more_than_could_ever_be_let_in_are_refused_for_good(
    replica: FakeReplica, most: int, lookahead: int, max_queued: int
) -> None:
    """They were told to come back, for ever."""
    config = RouterConfig(lookahead=lookahead, max_queued=max_queued)
    limit = max_queued + (most if replica.max_waiting == 1 else most + lookahead)
    for busy in (False, True):
        core = make_core(replace(replica, seq=0), config=config)
        if busy:
            core.acquire(ticket("running", 1))
        with pytest.raises(TooManyTogether) as caught:
            core.acquire_all(group(limit + 1, blocks=10))
        assert (caught.value.asked, caught.value.limit) == (limit + 1, limit)
    core.release("running")
    assert len(core.acquire_all(group(limit, blocks=10))) == limit - max_queued


def test_who_had_a_place_or_may_fit_replicas_to_come_is_not_refused_for_good() -> None:
    config = RouterConfig(lookahead=0, max_queued=1, expecting=2)
    core = make_core(FakeReplica("a"), config=config)
    with pytest.raises(Busy):
        core.acquire_all(group(5))
    with pytest.raises(TooManyTogether):
        core.acquire_all(group(6))
    assert len(core.acquire_all([replace(one, again=True) for one in group(6)])) == 2
    core = make_core(config=config)
    with pytest.raises(Busy):
        core.acquire_all(group(6))


def test_a_group_is_to_come_back_when_it_has_all_its_places() -> None:
    waits = []
    for count in (1, 9):
        config = RouterConfig(lookahead=0, max_queued=10, retry_max_s=1e6)
        core = make_core(FakeReplica("a"), config=config)
        core.acquire(ticket("running", 100))
        for number in range(10):
            core.acquire(ticket(f"waits{number}"))
        with pytest.raises(Busy) as caught:
            core.acquire_all(group(count, blocks=1))
        waits.append(caught.value.retry_after)
    # The same chance moves both: 11 places and 19.
    assert waits[1] / waits[0] == pytest.approx(19 / 11)


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
    """A refused group is as if it had never been; one that is let in is as if asked one by one.

    And one is refused for good only if an idle deployment has no room for it.
    """
    config = RouterConfig(lookahead=lookahead, max_queued=max_queued)
    cores = [RouterCore(config, FakeClock(), Random(0)) for _ in range(2)]
    for core in cores:
        core.report(FakeReplica("a", total=12, max_seqs=3).report())
        for number, one in enumerate(before):
            try:
                core.acquire_all(_tickets(f"b{number}.", one))
            except (Busy, TooManyTogether):
                continue
    core, other = cores
    shown = core.gauges()
    tickets = _tickets("g", sizes)
    try:
        decisions = core.acquire_all(tickets)
    except TooManyTogether:
        assert core.gauges() == shown
        assert _beyond(config, tickets) > max_queued
        return
    except Busy:
        if len(set(sizes[1])) == 1:
            assert _beyond(config, tickets) <= max_queued
        after = core.gauges()
        assert replace(after, busy_total=shown.busy_total) == shown
        assert len(tickets) + shown.queued > max_queued
        return
    singly = [d for one in tickets for d in other.acquire(replace(one, again=True))]
    assert set(where(decisions)) == set(where(singly))
    assert core.gauges().queued == other.gauges().queued


def _beyond(config: RouterConfig, tickets: list[Ticket]) -> int:
    """How many of the tickets wait if nobody else is there."""
    core = RouterCore(config, FakeClock(), Random(0))
    core.report(FakeReplica("a", total=12, max_seqs=3).report())
    core.acquire_all([replace(one, again=True) for one in tickets])
    return core.gauges().queued


def _tickets(name: str, sizes: tuple[int, list[int]]) -> list[Ticket]:
    priority, blocks = sizes
    return [
        replace(ticket(f"{name}{i}", one, priority=priority), call=name)
        for i, one in enumerate(blocks)
    ]
