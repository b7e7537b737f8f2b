"""A gateway's side of a router that stops, restarts, or loses sight of the gateway."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from deployments import router_client as module
from deployments.messages import Refusal, RefusalKind, Word
from deployments.router_client import RouterClient
from router.ticket import Ticket

TICKET = Ticket("t", 0, 0, 1, 1)
DEAD = ActorUnavailableError("gone", b"\0" * 16)
STOPPED = asyncio.CancelledError()
ABANDONED = Refusal(RefusalKind.ABANDONED)


class FakeCall:
    """What a handle's ``remote`` returns."""

    def __init__(self, answer: Awaitable[Any]) -> None:
        self._answer = answer
        self.cancelled = False

    def __await__(self) -> Any:
        return self._answer.__await__()

    def cancel(self) -> None:
        self.cancelled = True


class FakeRouter:
    """A handle: each method answers from its script, and for ever after as the last said."""

    def __init__(self, **scripts: Sequence[Any]) -> None:
        self._scripts = {name: list(script) for name, script in scripts.items()}
        self.called: list[tuple[str, tuple[Any, ...]]] = []
        self.calls: list[FakeCall] = []

    def options(self, method_name: str = "", **_: Any) -> Any:
        return _Method(self, method_name) if method_name else self

    def __getattr__(self, name: str) -> Any:
        return _Method(self, name)

    def _answer(self, name: str) -> Any:
        script = self._scripts.get(name, [None])
        return script.pop(0) if len(script) > 1 else script[0]

    def arguments(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.called if called == name]


class _Method:
    def __init__(self, router: FakeRouter, name: str) -> None:
        self._router = router
        self._name = name

    def remote(self, *arguments: Any, **_: Any) -> Any:
        self._router.called.append((self._name, arguments))
        answer = self._router._answer(self._name)
        if self._name == "session":
            return _stream(answer)
        call = FakeCall(_say(answer))
        self._router.calls.append(call)
        return call


async def _say(answer: Any) -> Any:
    await asyncio.sleep(0)
    if isinstance(answer, BaseException):
        raise answer
    return await answer() if callable(answer) else answer


async def _stream(answer: Any) -> AsyncIterator[Any]:
    yield None
    if isinstance(answer, BaseException):
        raise answer
    if isinstance(answer, str):
        yield answer
    await asyncio.Event().wait()


def client(
    router: FakeRouter,
    hold_s: float = 60.0,
    words: list[Word] | None = None,
    max_held: int = 9,
) -> RouterClient:
    on_word = ([] if words is None else words).append
    return RouterClient(router, "gw", random.Random(0), hold_s, max_held, on_word)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUTER_RETRY_S", 0.0)


async def until(check: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not check():
            await asyncio.sleep(0)


@pytest.mark.parametrize("trouble", [DEAD, STOPPED, ABANDONED], ids=["dead", "stopped", "session"])
async def test_asks_again_with_the_place_that_was_promised(trouble: Any) -> None:
    """A router that is restarted, or takes a gateway for dead, is no reason for an error."""
    router = FakeRouter(acquire=[trouble, trouble, "r"])
    ask = client(router)
    ask._down_since = None  # its session is open
    assert await ask.place(TICKET, bounced=False) == "r"
    tickets = [ticket for _, ticket in router.arguments("acquire")]
    assert [ticket.again for ticket in tickets] == [False, True, True]
    assert {(ticket.id, ticket.arrival) for ticket in tickets} == {("t", 0)}


async def test_a_bounce_that_did_not_arrive_is_an_acquire() -> None:
    router = FakeRouter(bounced=[DEAD], acquire=["r"])
    assert await client(router).place(TICKET, bounced=True) == "r"
    assert [name for name, _ in router.called] == ["bounced", "acquire"]


@pytest.mark.parametrize("answer", [DEAD, asyncio.Event().wait], ids=["dead", "hangs"])
async def test_no_router_for_long_is_no_replica(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call to a deployment without a process waits for ever: so did the client."""
    monkeypatch.setattr(module, "LOOK_S", 0.005)
    ask = client(FakeRouter(acquire=[answer]), hold_s=0.01)
    answers = [await ask.place(TICKET, bounced=False) for _ in range(3)]
    assert all(isinstance(one, Refusal) for one in answers)
    assert {one.kind for one in answers if isinstance(one, Refusal)} == {RefusalKind.NO_REPLICA}
    # Spread: who is told the same time comes back at the same time.
    assert len({one.retry_after for one in answers if isinstance(one, Refusal)}) == 3


async def test_while_there_is_no_router_few_are_held_and_keep_their_place() -> None:
    """A new router's "full" came after 5 s, when the streams had had their 200."""
    router = FakeRouter(acquire=[asyncio.Event().wait])
    ask = client(router, max_held=2)
    tickets = [replace(TICKET, id=name) for name in "abcd"]
    calls = [asyncio.create_task(ask.place(ticket, bounced=False)) for ticket in tickets]
    refused = [await call for call in calls[2:]]
    assert all(isinstance(one, Refusal) and one.kind is RefusalKind.BUSY for one in refused)
    assert all(isinstance(one, Refusal) and one.retry_after >= 1 for one in refused)
    assert [(t.id, t.again) for _, t in router.arguments("acquire")] == [("a", True), ("b", True)]
    # Who had a place before is never counted.
    again = asyncio.create_task(ask.place(replace(TICKET, again=True), bounced=False))
    await until(lambda: len(router.arguments("acquire")) == 3)
    for call in (*calls, again):
        call.cancel()
    await asyncio.wait([*calls, again])
    router = FakeRouter(acquire=["r"])
    assert await client(router, max_held=1).place(TICKET, bounced=False) == "r"


async def test_waiting_in_the_queue_is_not_waiting_for_a_router(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever had waited for long was refused at once when the router died."""
    monkeypatch.setattr(module, "LOOK_S", 0.005)

    async def long() -> None:
        await asyncio.sleep(0.1)
        raise DEAD

    router = FakeRouter(acquire=[long, DEAD, "r"], session=[None])
    ask = client(router, hold_s=0.05)
    session = asyncio.create_task(ask.keep_session())
    await until(lambda: router.arguments("session"))
    assert await ask.place(TICKET, bounced=False) == "r"
    session.cancel()


async def test_hears_which_replicas_the_router_gives_up() -> None:
    router, words = FakeRouter(session=["r"]), list[Word]()
    task = asyncio.create_task(client(router, words=words).keep_session())
    await until(lambda: len(words) == 2)
    task.cancel()
    assert words == [None, "r"]


async def test_cancelling_cancels_the_call() -> None:
    router = FakeRouter(acquire=[asyncio.Event().wait])
    task = asyncio.create_task(client(router).place(TICKET, bounced=False))
    await until(lambda: router.calls)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert router.calls[0].cancelled


@pytest.mark.parametrize("trouble", [DEAD, STOPPED], ids=["dead", "stopped"])
async def test_a_release_arrives_whatever_happens_on_the_way(trouble: Any) -> None:
    """A connection that failed is not a router that forgot: its grants were never given up."""
    router = FakeRouter(release=[trouble, trouble, None])
    ask = client(router)
    ask.release("a", finished=True)
    await until(lambda: router.arguments("release"))
    ask.release("b", finished=False)
    await until(lambda: len(router.arguments("release")) == 3)
    assert router.arguments("release")[-1] == ({"a": True, "b": False},)


@pytest.mark.parametrize("trouble", [DEAD, STOPPED, RuntimeError("bug")])
async def test_a_session_is_opened_again_whatever_ended_it(trouble: BaseException) -> None:
    """Without one the router would never notice that this gateway died."""
    router = FakeRouter(session=[trouble, trouble, None])
    task = asyncio.create_task(client(router).keep_session())
    await until(lambda: len(router.arguments("session")) == 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("trouble", [DEAD, STOPPED], ids=["dead", "stopped"])
async def test_without_a_router_nothing_is_healthy(trouble: BaseException) -> None:
    router = FakeRouter(healthy=[trouble], describe=[trouble], lost=[trouble])
    ask = client(router)
    assert not await ask.healthy()
    assert isinstance(await ask.describe(), Refusal)
    await ask.lost("r", certain=False)


GROUP = [replace(TICKET, id=name, call="a") for name in "abc"]


def called_with(router: FakeRouter, name: str) -> list[list[tuple[str, bool]]]:
    return [[(one.id, one.again) for one in tickets] for _, tickets in router.arguments(name)]


@pytest.mark.parametrize("trouble", [DEAD, STOPPED, ABANDONED], ids=["dead", "stopped", "session"])
async def test_a_group_is_asked_for_again_whole(trouble: Any) -> None:
    router = FakeRouter(admit=[trouble, None])
    ask = client(router)
    ask._down_since = None
    assert await ask.admit(GROUP) is None
    first, second = called_with(router, "admit")
    assert first == [("a", False), ("b", False), ("c", False)]
    assert second == [("a", True), ("b", True), ("c", True)]


async def test_while_there_is_no_router_a_group_is_held_or_refused_whole() -> None:
    router = FakeRouter(admit=[asyncio.Event().wait], acquire=["r"])
    ask = client(router, max_held=4)
    held = asyncio.create_task(ask.admit(GROUP))
    await until(lambda: router.arguments("admit"))
    assert called_with(router, "admit") == [[("a", True), ("b", True), ("c", True)]]
    refusal = await ask.admit([replace(TICKET, id=name) for name in "de"])
    assert refusal is not None
    assert (refusal.kind, refusal.current, refusal.limit) == (RefusalKind.BUSY, 3, 4)
    # More than can ever be held have to come back when there is a router.
    never = await ask.admit([replace(TICKET, id=str(number)) for number in range(5)])
    assert never is not None
    assert never.kind is RefusalKind.NO_REPLICA
    # One more has room, and whoever leaves makes room.
    assert await ask.place(replace(TICKET, id="f"), bounced=False) == "r"
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held
    assert (router.calls[0].cancelled, ask._held) == (True, 0)


async def test_its_time_to_start_runs_on_while_there_is_no_router() -> None:
    router = FakeRouter(acquire=[DEAD, "r"], admit=[DEAD, None])
    ask = client(router)
    hasty = replace(TICKET, start_within_s=50.0)
    assert await ask.place(hasty, bounced=False) == "r"
    assert await ask.admit([hasty]) is None
    placed = [ticket.start_within_s for _, ticket in router.arguments("acquire")]
    admitted = [tickets[0].start_within_s for _, tickets in router.arguments("admit")]
    for first, second in (placed, admitted):
        assert 0.0 <= second < first <= 50.0
    assert module._again(replace(TICKET, start_within_s=1.0), -1e9).start_within_s == 0.0


async def test_a_new_router_is_told_what_is_held_and_nothing_that_was_given_up() -> None:
    """It knows of no request that runs, whose they are, nor who died with them."""
    release = asyncio.Event()
    router = FakeRouter(acquire=["r"], session=[DEAD, None], remember=[DEAD, release.wait, None])
    ask = client(router)
    for name in "abc":
        await ask.place(replace(TICKET, id=name), bounced=False)
    ask.release("a", finished=True)
    await until(lambda: router.arguments("release"))
    session = asyncio.create_task(ask.keep_session())
    await until(lambda: len(router.arguments("remember")) == 2)
    # What is given up while that is said is said after it.
    ask.release("b", finished=True)
    await asyncio.sleep(0)
    assert len(router.arguments("release")) == 1
    release.set()
    await until(lambda: len(router.arguments("release")) == 2)
    said = [[one.id for one in tickets] for _, tickets in router.arguments("remember")]
    assert all(one == ["b", "c"] for one in said[:2])
    assert router.arguments("release")[-1] == ({"b": True},)
    session.cancel()
    await asyncio.wait([session])


async def test_with_nothing_held_a_router_is_told_nothing() -> None:
    router = FakeRouter(session=["r"])
    session = asyncio.create_task(client(router).keep_session())
    await until(lambda: router.arguments("session"))
    await asyncio.sleep(0.01)
    assert router.arguments("remember") == []
    session.cancel()
    await asyncio.wait([session])
