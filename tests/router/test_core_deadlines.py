"""A ticket that was to start before now is refused, never placed."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core import RouterConfig
from router.errors import Expired
from router.ticket import Decision, Placement, Refusal, Ticket
from tests.router.fake_cluster import FakeClock, FakeReplica, make_core, ticket, where


def hasty(name: str, within_s: float, blocks: int = 50) -> Ticket:
    return replace(ticket(name, blocks), start_within_s=within_s)


def expired(decisions: list[Decision]) -> list[str]:
    refused = [one for one in decisions if isinstance(one, Refusal)]
    assert all(isinstance(one.error, Expired) for one in refused)
    return [one.ticket for one in refused]


def test_a_tick_refuses_those_whose_time_is_over_soonest_first() -> None:
    clock = FakeClock()
    core = make_core(FakeReplica("a"), config=RouterConfig(lookahead=0), clock=clock)
    core.acquire(ticket("running", 100))
    for name, within_s in (("late", 9.0), ("b", 2.0), ("a", 1.0)):
        core.acquire(hasty(name, within_s))
    core.acquire(ticket("patient", 50))
    clock.now += 0.9
    assert core.tick() == []
    clock.now += 1.1
    decisions = core.tick()
    assert expired(decisions) == ["a", "b"]
    error = decisions[0].error if isinstance(decisions[0], Refusal) else None
    assert isinstance(error, Expired)
    assert (error.waited_s, error.limit_s) == (pytest.approx(2.0), 1.0)
    assert core.gauges().expired_total == 2
    assert where(core.release("running")) == {"late": "a", "patient": "a"}


def test_room_that_comes_too_late_goes_to_the_next() -> None:
    clock = FakeClock()
    core = make_core(FakeReplica("a"), config=RouterConfig(lookahead=0), clock=clock)
    core.acquire(ticket("running", 100))
    core.acquire(hasty("head", 1.0, blocks=100))
    core.acquire(ticket("next", 100))
    clock.now += 1.0
    decisions = core.release("running")
    assert expired(decisions[:1]) == ["head"]
    assert where(decisions[1:]) == {"next": "a"}


def test_a_bounce_does_not_give_it_more_time() -> None:
    clock = FakeClock()
    replica = FakeReplica("a")
    core = make_core(replica, config=RouterConfig(lookahead=0), clock=clock)
    assert where(core.acquire(hasty("x", 2.0))) == {"x": "a"}
    clock.now += 1.5
    assert core.bounced("x") == []
    clock.now += 0.5
    assert expired(core.report(replica.report())) == ["x"]


def test_what_runs_has_started() -> None:
    clock = FakeClock()
    core = make_core(FakeReplica("a"), clock=clock)
    core.acquire(hasty("x", 1.0))
    clock.now += 5.0
    assert core.tick() == []
    assert core.gauges().replicas[0].grants == 1


_Moves = st.lists(
    st.one_of(
        st.tuples(st.just("acquire"), st.none() | st.floats(0.0, 4.0)),
        st.tuples(st.sampled_from(["release", "tick", "room", "bounce"]), st.floats(0.0, 2.0)),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(_Moves)
def test_nobody_is_placed_or_kept_after_its_time(moves: list[tuple[str, float | None]]) -> None:
    """Against a plain list: whoever waits is refused in the first turn after its deadline."""
    clock = FakeClock(0.0)
    replica = FakeReplica("a", total=3, max_seqs=2)
    core = make_core(replica, config=RouterConfig(lookahead=0, max_queued=99), clock=clock)
    deadline: dict[str, float] = {}
    waiting: list[str] = []
    running: list[str] = []
    for number, (move, value) in enumerate(moves):
        decisions: list[Decision] = []
        if move == "acquire":
            name = f"t{number}"
            deadline[name] = float("inf") if value is None else clock.now + value
            waiting.append(name)
            decisions = core.acquire(replace(ticket(name, 2), start_within_s=value))
        else:
            clock.now += value or 0.0
            if move == "release" and waiting:
                decisions = core.release(waiting.pop())
            elif move == "room" and running:
                decisions = core.release(running.pop(), finished=True)
            elif move == "bounce" and running:
                waiting.append(name := running.pop())
                decisions = core.bounced(name)
            else:
                decisions = core.tick() + core.report(replica.report())
        for decision in decisions:
            waiting.remove(decision.ticket)
            if isinstance(decision, Placement):
                assert deadline[decision.ticket] > clock.now, "placed after its time"
                running.append(decision.ticket)
            else:
                assert isinstance(decision.error, Expired)
                assert deadline[decision.ticket] <= clock.now, "refused too early"
        assert all(deadline[name] > clock.now for name in waiting), "kept after its time"
        assert core.gauges().queued == len(waiting)
