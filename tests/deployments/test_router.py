"""The Router deployment: who waits gets an answer, whatever becomes of them."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from deployments import router as module
from deployments.messages import Heard, Refusal, RefusalKind, Vitals
from deployments.metrics import Counts
from deployments.router import Router
from router.report import Report
from router.ticket import Ticket
from tests.deployments.fleet import INFO, WELL, Fleet, settle, ticket


async def test_who_comes_before_the_first_replica_waits_for_it() -> None:
    """llm-d-router#1735."""
    fleet = Fleet()
    early = fleet.ask("a")
    await settle()
    assert not early.done()
    await fleet.report("r")
    assert await early == "r"


async def test_hope_for_a_replica_ends() -> None:
    fleet = Fleet(hold_s=0.01)
    answer = await fleet.ask("a")
    assert isinstance(answer, Refusal)
    assert (answer.kind, answer.retry_after > 0) == (RefusalKind.NO_REPLICA, True)
    later = await fleet.ask("b")
    assert isinstance(later, Refusal)
    # And comes back with a replica.
    await fleet.report("r")
    assert await fleet.ask("c") == "r"


async def test_who_waits_gets_the_room_that_comes_free() -> None:
    fleet = Fleet()
    await fleet.report("r")
    assert [await fleet.ask("a"), await fleet.ask("b")] == ["r", "r"]
    third = fleet.ask("c")
    await settle()
    assert not third.done()
    await fleet.router.release({"a": True})
    assert await third == "r"


async def test_full_and_too_large_are_said_at_once() -> None:
    fleet = Fleet(max_queued=0)
    await fleet.report("r")
    await fleet.ask("a", blocks=10)
    busy = await fleet.ask("b")
    large = await fleet.ask("c", blocks=11)
    assert isinstance(busy, Refusal)
    assert isinstance(large, Refusal)
    assert (busy.kind, busy.retry_after >= 0.75) == (RefusalKind.BUSY, True)
    assert (large.kind, large.current, large.limit) == (RefusalKind.NEVER_FITS, 11, 10)
    assert fleet.grants() == 1


@pytest.mark.parametrize("waits", [True, False])
async def test_a_cancelled_call_gives_its_ticket_up(waits: bool) -> None:
    fleet = Fleet()
    await fleet.report("r")
    if waits:
        await fleet.ask("first", blocks=10)
    call = fleet.ask("a")
    await settle()
    if waits:
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        assert fleet.grants() == 1
    await fleet.router.release({"a": False, "first": False})
    # Twice is the same as once.
    await fleet.router.release({"a": False})
    assert fleet.grants() == 0


async def test_a_bounced_ticket_waits_for_the_replicas_next_report() -> None:
    fleet = Fleet()
    await fleet.report("r")
    assert await fleet.ask("a") == "r"
    again = asyncio.create_task(fleet.router.bounced("g", ticket("a")))
    await settle()
    assert not again.done()
    await fleet.report("r")
    assert await again == "r"


async def test_a_bounced_ticket_that_is_not_known_is_asked_for_anew() -> None:
    fleet = Fleet()
    await fleet.report("r")
    assert await fleet.router.bounced("g", ticket("a")) == "r"


async def test_a_bounced_ticket_that_is_not_known_had_a_place_and_keeps_it() -> None:
    fleet = Fleet(max_queued=0)
    await fleet.report("r", free=0)
    again = asyncio.create_task(fleet.router.bounced("g", ticket("a")))
    await settle()
    assert not again.done()
    await fleet.report("r")
    assert await again == "r"


@pytest.mark.parametrize("waits", [True, False])
async def test_a_call_that_was_made_again_cannot_give_the_ticket_up(waits: bool) -> None:
    """A connection breaks, the gateway asks again, and only then is the old call cancelled."""
    fleet = Fleet()
    await fleet.report("r")
    if waits:
        await fleet.ask("first", blocks=10)
    old = fleet.ask("a")
    await settle()
    new = fleet.ask("a")
    await settle()
    old.cancel()
    await settle()
    if waits:
        assert not new.done()
        await fleet.router.release({"first": True})
    assert await new == "r"
    assert fleet.grants() == 1
    assert fleet.router._core.gauges().replicas[0].charged == 1


async def test_an_older_call_for_the_same_ticket_ends() -> None:
    fleet = Fleet()
    old = fleet.ask("a")
    await settle()
    new = fleet.ask("a")
    await settle()
    await fleet.report("r")
    assert await new == "r"
    answer = await old
    assert isinstance(answer, Refusal)
    assert answer.kind is RefusalKind.ABANDONED


async def test_nothing_is_kept_of_what_has_ended() -> None:
    fleet = Fleet()
    session = fleet.router.session("g")
    await anext(session)
    for life in range(3):
        name = f"r{life}"
        await fleet.report(name)
        answers = [await fleet.ask(f"{name}-{i}") for i in range(2)]
        waiting = fleet.ask(f"{name}-2")
        await settle()
        assert answers == [name] * 2
        await fleet.router.release({f"{name}-0": True})
        assert await waiting == name
        await fleet.router.lost(name, certain=True)
    await session.aclose()  # type: ignore[attr-defined]
    router = fleet.router
    assert (len(router._pending), await router.unfinished()) == (0, 0)
    assert (len(router._sessions), router._muster.replicas, router._placed) == (0, {}, {})
    assert 'replica="r' not in (await router.metrics("m")).replace('replica="router"', "")


async def test_a_lost_replica_gets_nothing_until_it_reports_in_full() -> None:
    fleet = Fleet()
    await fleet.report("r")
    await fleet.report("s", free=5)
    assert await fleet.ask("a") == "r"
    await fleet.router.lost("r", certain=True)
    assert await fleet.ask("b") == "s"
    assert fleet.grants() == 1
    assert (await fleet.report("r")).full
    call = fleet.ask("c")
    await settle()
    assert not call.done()
    await fleet.report("r", full=True)
    assert await call == "r"


async def test_health_is_that_of_the_replicas() -> None:
    """ray#61263: a step loop that hangs, behind a process that answers."""
    fleet = Fleet()
    assert not await fleet.router.healthy()
    await fleet.report("r")
    assert await fleet.router.healthy()
    await fleet.report("r", vitals=Vitals(False, 0, 0))
    assert not await fleet.router.healthy()
    call = fleet.ask("a")
    await settle()
    assert not call.done()
    await fleet.report("r", full=True)
    assert await call == "r"


async def test_a_fleet_that_was_not_heard_of_for_too_long_is_not_healthy() -> None:
    """Nor after a sleep of the router's own, in which nobody was given up."""
    fleet, now = Fleet(silent_s=5.0), 100.0
    fleet.router._clock = lambda: now
    await fleet.report("r")
    now += 4.9
    assert await fleet.router.healthy()
    now += 0.2
    assert not await fleet.router.healthy()
    await fleet.report("r")
    assert await fleet.router.healthy()


async def test_a_gateways_tickets_go_with_it() -> None:
    fleet = Fleet()
    session = fleet.router.session("g")
    await anext(session)
    await fleet.report("r")
    await fleet.ask("a")
    await fleet.ask("b", gateway="other")
    waiting = fleet.ask("c")
    await settle()
    await session.aclose()  # type: ignore[attr-defined]
    await settle()
    assert fleet.grants() == 1
    answer = await waiting
    assert isinstance(answer, Refusal)
    assert answer.kind is RefusalKind.ABANDONED


async def test_the_page_adds_up_what_gateways_count() -> None:
    fleet = Fleet()
    await fleet.report("r")
    counts = Counts()
    counts.add("prompt_tokens_total", 5)
    await fleet.router.count(counts.take())
    counts.add("prompt_tokens_total", 2)
    await fleet.router.count(counts.take())
    page = await fleet.router.metrics("m")
    assert 'tidegate:prompt_tokens_total{model_name="m"} 7' in page


async def test_describes_the_smallest_replica() -> None:
    fleet = Fleet()
    asked = asyncio.create_task(fleet.router.describe())
    await settle()
    assert not asked.done()
    await fleet.report("r")
    assert await asked == INFO


async def test_what_is_known_of_replicas_is_said_at_once_and_wakes_none() -> None:
    """A list of models that a scraper asks for would keep a sleeping fleet awake."""
    fleet = Fleet()
    assert await fleet.router.known() is None
    await fleet.report("r")
    assert await fleet.router.known() == INFO


async def test_whoever_asks_for_replicas_in_vain_is_told_when_to_come_back() -> None:
    """Spread: who is told the same time comes back at the same time."""
    fleet = Fleet(hold_s=0.01)
    answers = await asyncio.gather(*(fleet.router.describe() for _ in range(5)))
    times = [answer.retry_after for answer in answers if isinstance(answer, Refusal)]
    assert len(set(times)) == 5


async def test_a_replica_that_comes_and_goes_is_not_described() -> None:
    fleet = Fleet()
    asked = asyncio.create_task(fleet.router.describe())
    await settle()
    await fleet.report("r")
    await fleet.router.lost("r", certain=True)
    await settle()
    assert not asked.done()
    await fleet.report("s")
    assert await asked == INFO


async def test_a_new_router_hears_the_replicas_before_it_places() -> None:
    """The first to report after a restart got everything, though it had no room."""
    fleet = Fleet(replicas=2, heartbeat_s=60.0, silent_s=200.0)
    calls = [fleet.ask(name) for name in ("a", "b", "c")]
    await fleet.report("r", free=4)
    await settle()
    assert not any(call.done() for call in calls)
    await fleet.report("s")
    # One more on r would be one too many.
    assert sorted(await asyncio.gather(*calls)) == ["r", "s", "s"]


async def test_a_new_router_does_not_wait_for_those_that_never_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.005)
    fleet = Fleet(replicas=2, heartbeat_s=0.01)
    call = fleet.ask("a")
    await fleet.report("r")
    assert await asyncio.wait_for(call, 5) == "r"


async def test_a_replica_that_leaves_gets_nothing_new() -> None:
    fleet = Fleet()
    await fleet.report("r")
    assert await fleet.ask("a") == "r"
    await fleet.report("r", admitted=("a",), leaving=True)
    call = fleet.ask("b")
    await settle()
    assert not call.done()
    await fleet.report("s")
    assert await call == "s"
    assert fleet.grants() == 2


async def test_out_of_reach_once_is_last_and_twice_is_lost() -> None:
    fleet = Fleet()
    await fleet.report("r")
    await fleet.report("s", free=5)
    await fleet.router.lost("r", certain=False)
    assert await fleet.ask("a") == "s"
    # No news is not "full": it is still there for what nobody else takes.
    assert await fleet.ask("b") == "r"
    await fleet.router.lost("r", certain=False)
    assert fleet.grants() == 1
    assert list(fleet.router._muster.replicas) == ["s"]
    assert await fleet.router.unfinished() == 1


async def test_a_silent_replica_is_given_up_and_the_gateways_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ray#61263: a process that was stopped keeps its streams open; nobody else would notice."""
    monkeypatch.setattr(module, "TICK_S", 0.005)
    fleet = Fleet(heartbeat_s=0.05, silent_s=0.2)
    session = fleet.router.session("g")
    assert await anext(session) is None
    await fleet.report("r")
    assert await fleet.ask("a") == "r"
    words = [await asyncio.wait_for(anext(session), 5) for _ in range(2)]
    assert words == [frozenset({"r"}), "r"]
    assert (fleet.grants(), fleet.router._muster.replicas) == (0, {})
    await session.aclose()  # type: ignore[attr-defined]


async def test_a_new_router_tells_the_gateways_who_is_there() -> None:
    """A replica that froze before it started is silent, and streams from it never ended."""
    fleet = Fleet(replicas=2, heartbeat_s=60.0, silent_s=200.0)
    early = fleet.router.session("g")
    assert await anext(early) is None
    fleet.router._tick()
    await fleet.report("r")
    fleet.router._tick()
    await fleet.report("s")
    for _ in range(2):
        fleet.router._tick()
    assert await anext(early) == frozenset({"r", "s"})
    late = fleet.router.session("h")
    assert await anext(late) == frozenset({"r", "s"})
    for session in (early, late):
        await session.aclose()  # type: ignore[attr-defined]


async def test_a_step_loop_that_hangs_is_told_to_the_gateways_too() -> None:
    fleet = Fleet()
    session = fleet.router.session("g")
    await anext(session)
    await fleet.report("r")
    await fleet.report("r", vitals=Vitals(False, 0, 0))
    assert await anext(session) == "r"
    await session.aclose()  # type: ignore[attr-defined]


async def test_when_closed_it_finishes_what_it_has() -> None:
    """vllm#24885: SIGTERM with requests under way."""
    fleet = Fleet()
    await fleet.report("r")
    await fleet.ask("a", blocks=10)
    waiting = fleet.ask("b")
    await settle()
    await fleet.router.close()
    assert not await fleet.router.healthy()
    refused = await fleet.ask("c")
    assert isinstance(refused, Refusal)
    assert (refused.kind, await fleet.router.unfinished()) == (RefusalKind.NO_REPLICA, 2)
    await fleet.router.release({"a": True})
    assert await waiting == "r"
    # Its replica may die even now.
    again = Ticket("b.1", 0, 0, 4, 4, again=True)
    await fleet.router.release({"b": False})
    assert await fleet.router.acquire("g", again) == "r"
    await fleet.router.release({"b.1": True})
    assert await fleet.router.unfinished() == 0


class Sleeper(Fleet):
    """A fleet that may go to sleep, and counts how often it is woken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.woken = 0

        async def wake(router: Router) -> None:
            self.woken += 1

        monkeypatch.setattr(Router, "_wake", wake)
        scaled = {"autoscaling": "blocks", "min_replicas": 0, "max_replicas": 1}
        super().__init__(**scaled, **settings)


async def test_asleep_is_healthy_and_a_request_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scaled to zero: requests are held, not refused, while a replica starts."""
    fleet = Sleeper(monkeypatch)
    await fleet.report("r")
    await fleet.router.lost("r", certain=True)
    await settle()
    assert (await fleet.router.healthy(), fleet.router._hope.alive) == (True, False)
    woken = fleet.woken
    call = fleet.ask("a")
    await settle()
    assert (call.done(), fleet.woken) == (False, woken + 1)
    await fleet.report("s")
    assert await call == "s"


async def test_a_router_that_starts_while_the_fleet_sleeps_wakes_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Sleeper(monkeypatch)
    await settle()
    assert (fleet.woken, await fleet.router.healthy()) == (0, True)
    call = fleet.ask("a")
    await settle()
    assert fleet.woken == 1
    call.cancel()


async def test_while_the_last_one_leaves_a_request_wakes_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It had a request to finish, and everybody else waited for that, and then for the start."""
    fleet = Sleeper(monkeypatch)
    await fleet.report("r")
    await fleet.ask("a")
    await fleet.report("r", admitted=("a",), leaving=True)
    call = fleet.ask("b")
    await settle()
    assert (call.done(), fleet.woken) == (False, 1)
    await fleet.report("s")
    assert await call == "s"


async def test_what_an_earlier_router_placed_is_unfinished() -> None:
    """After a restart the autoscaler was told that nothing runs, and SIGTERM drained nothing."""
    fleet = Fleet()
    await fleet.report("r")
    held = Report(
        replica="s",
        seq=1,
        total_blocks=10,
        free_blocks=5,
        running=2,
        max_seqs=8,
        waiting=0,
        waiting_blocks=0,
        max_waiting=8,
        held=("x", "y"),
    )
    await fleet.router.report(held, WELL, INFO)
    assert await fleet.router.unfinished() == 2


async def test_a_fleet_that_does_not_wake_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Sleeper(monkeypatch, hold_s=0.01)
    answers = [await fleet.ask("a"), await fleet.ask("b")]
    assert all(isinstance(one, Refusal) for one in answers)
    assert (await fleet.router.healthy(), fleet.woken >= 2) == (False, True)


async def test_replicas_relay_what_the_autoscaler_is_to_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Sleeper(monkeypatch)
    await fleet.report("r", free=6)
    fleet.router._tick()
    demand = (await fleet.report("r", free=6)).demand
    assert (demand["replicas"], demand["total_blocks"], demand["free_blocks"]) == (1, 10, 6)
    assert Heard(False) == await Fleet().report("r")
