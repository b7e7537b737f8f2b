"""A request is given up when its time is over, wherever it is then, and leaves nothing."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from deployments.messages import Refusal, RefusalKind
from deployments.order import END, FIRST_TOKEN, Failed, Order, Refused
from engine.request import SamplingParams
from engine.submission import EXPIRED
from tests.deployments.sequences import NOBODY, FakeReplica, FakeRouter, Run, settle, until

FAR_S = 1000.0
State = Callable[[], Awaitable[tuple[Run, FakeRouter, FakeReplica]]]


def later(seconds: float = FAR_S) -> float:
    return time.monotonic() + seconds


def expire(run: Run) -> None:
    """Let its time be over in this moment."""
    run.sequence._timer.reschedule(asyncio.get_running_loop().time())


def limit_of(run: Run) -> str:
    """The limit that ended it; fails if anything else did, or anything came after."""
    last = run.events[-1]
    assert isinstance(last, Refused)
    assert last.refusal.kind is RefusalKind.EXPIRED
    assert not [one for one in run.events[:-1] if isinstance(one, Refused | Failed)]
    return last.refusal.message


def make(*answers: str | Refusal, **order: Any) -> tuple[Run, FakeRouter, FakeReplica]:
    router, a = FakeRouter(*answers), FakeReplica("a")
    return Run(router, a, end_at=later(), **order), router, a


async def waiting() -> tuple[Run, FakeRouter, FakeReplica]:
    run, router, a = make()
    await until(lambda: router.placed)
    return run, router, a


async def submitting() -> tuple[Run, FakeRouter, FakeReplica]:
    run, router, a = make("a")
    a.gate = asyncio.Event()
    await until(lambda: a.listeners)
    await settle()
    return run, router, a


async def running() -> tuple[Run, FakeRouter, FakeReplica]:
    run, router, a = make("a")
    await until(lambda: a.submitted)
    a.send(7, text="x")
    return run, router, a


async def resuming() -> tuple[Run, FakeRouter, FakeReplica]:
    run, router, a = make("a")
    await until(lambda: a.submitted)
    await settle()
    a.send(7, text="x")
    a.die()
    await until(lambda: len(router.placed) == 2)
    return run, router, a


async def without_a_replica() -> tuple[Run, FakeRouter, FakeReplica]:
    """What it can go on with may come back: it asks again every second."""
    run, router, a = make("a", NOBODY)
    await until(lambda: a.submitted)
    await settle()
    a.send(7)
    a.die()
    await until(lambda: len(router.placed) == 2)
    await settle()
    return run, router, a


async def out_of_reach() -> tuple[Run, FakeRouter, FakeReplica]:
    run, router, a = make(*["gone"] * 99)
    await until(lambda: len(router.placed) == 2)
    return run, router, a


STATES = [waiting, submitting, running, resuming, without_a_replica, out_of_reach]


@pytest.mark.parametrize("state", STATES)
async def test_in_every_state_the_end_of_its_time_is_the_end(state: State) -> None:
    run, router, a = await state()
    expire(run)
    await run.task
    if a.gate is not None:
        a.gate.set()
    await settle()
    assert limit_of(run) == END
    assert (router.live(), a.running, a.listeners) == (0, set(), {})
    assert len({ticket for ticket, _ in router.released}) == len(router.released)
    assert run.counted("request_expired_total", limit=END) == 1
    assert run.counted("request_success_total", finished_reason="abort") == 0
    assert run.turns[-1][:2] == ("ended", "expired")
    assert sum(turn[0] == "ended" for turn in run.turns) == 1


@pytest.mark.parametrize("state", STATES)
async def test_a_client_that_leaves_then_has_left(state: State) -> None:
    run, router, a = await state()
    run.task.cancel()
    await asyncio.wait([run.task])
    if a.gate is not None:
        a.gate.set()
    await settle()
    assert (router.live(), a.running, a.listeners) == (0, set(), {})
    assert run.counted("request_success_total", finished_reason="abort") == 1
    assert run.counted("request_expired_total", limit=END) == 0
    assert run.turns[-1][:2] == ("ended", "abort")


@pytest.mark.parametrize("steps", range(16))
async def test_at_any_moment_it_leaves_nothing(steps: int) -> None:
    run, router, a = make("a")
    for _ in range(steps):
        await asyncio.sleep(0)
    if steps:
        expire(run)
    else:
        run.task.cancel()
    await asyncio.wait([run.task])
    await settle()
    assert (router.live(), a.running, a.listeners) == (0, set(), {})


@pytest.mark.parametrize("limit", [FIRST_TOKEN, END])
async def test_the_timer_is_set_and_fires(limit: str) -> None:
    router = FakeRouter()
    soon, far = later(0.01), later()
    times = {"first_token_at": soon, "end_at": far} if limit == FIRST_TOKEN else {"end_at": soon}
    run = Run(router, **times)
    await asyncio.wait_for(run.task, 5)
    assert limit_of(run) == limit
    assert router.live() == 0


async def test_the_first_token_lifts_its_limit_and_no_other() -> None:
    for end_at in (None, later()):
        a = FakeReplica("a")
        run = Run(FakeRouter("a"), a, first_token_at=later(FAR_S / 2), end_at=end_at)
        await until(lambda a=a: a.submitted)
        before = run.sequence._timer.when()
        a.send(text="")  # half a character, say: no token
        assert run.sequence._timer.when() == before
        a.send(7)
        when = run.sequence._timer.when()
        assert (when is None) is (end_at is None)
        assert before is not None
        assert when is None or when > before
        a.send(8, finish="stop")
        await run.task
        assert isinstance(run.events[-1], tuple)


async def test_what_is_over_before_it_starts_asks_nobody() -> None:
    router = FakeRouter("a")
    run = Run(router, FakeReplica("a"), first_token_at=later(-1.0))
    await run.task
    assert limit_of(run) == FIRST_TOKEN
    assert (router.placed, router.released) == ([], [])


async def test_router_and_engine_are_told_when_it_is_not_to_be_started_any_more() -> None:
    a = FakeReplica("a")
    began = time.monotonic()
    run = Run(FakeRouter("a"), a, first_token_at=began + 20.0, end_at=began + 30.0)
    await until(lambda: a.submitted)
    a.send(7)
    await settle()
    router = run.sequence._router
    assert isinstance(router, FakeRouter)
    router.answers.append("a")
    a.die()
    await until(lambda: len(a.submitted) == 2)
    for first, second in ([ticket.start_within_s for ticket, _ in router.placed], a.within_s):
        assert first is not None
        assert second is not None
        assert 0.0 < first <= 20.0 < second <= 30.0
    # Clocks of two machines may differ by more than any limit.
    assert [one.start_by for one in a.submitted] == [None, None]
    run.task.cancel()
    await asyncio.wait([run.task])


@pytest.mark.parametrize("who", ["router", "engine"])
async def test_whoever_finds_it_too_late_says_so_in_the_same_way(who: str) -> None:
    refused = Refusal(RefusalKind.EXPIRED)
    router, a = FakeRouter(refused if who == "router" else "a"), FakeReplica("a")
    run = Run(router, a, first_token_at=later(), end_at=later(2 * FAR_S))
    if who == "engine":
        await until(lambda: a.submitted)
        a.send(error=EXPIRED)
    await run.task
    await settle()
    assert limit_of(run) == FIRST_TOKEN
    assert router.live() == 0
    assert run.counted("request_expired_total", limit=FIRST_TOKEN) == 1
    assert run.counted("admission_rejections_total", reason="expired") == 0


async def test_an_end_that_was_sent_is_not_followed_by_another() -> None:
    run, router, a = await running()
    a.send(8, finish="stop")
    expire(run)
    await asyncio.wait([run.task])
    assert isinstance(run.events[-1], tuple)
    assert run.counted("request_expired_total", limit=END) == 0
    assert router.released == [("k", True)]


async def test_a_token_in_the_very_moment_does_not_stop_it() -> None:
    run, _, a = make("a", first_token_at=later())
    await until(lambda: a.submitted)
    expire(run)
    await asyncio.sleep(0)
    a.send(7)
    await run.task
    assert limit_of(run) == END


def test_the_sooner_of_both_limits_holds() -> None:
    order = Order("k", (1,), SamplingParams(), 0, 0, 0.0, "r", first_token_at=5.0, end_at=9.0)
    assert (order.deadline(False), order.deadline(True)) == ((5.0, FIRST_TOKEN), (9.0, END))
    early = Order("k", (1,), SamplingParams(), 0, 0, 0.0, "r", first_token_at=5.0, end_at=2.0)
    assert early.deadline(False) == (2.0, END)
    assert Order("k", (1,), SamplingParams(), 0, 0, 0.0, "r").left_s(False) is None
