"""A gateway and a router with a lane between them: both real, Serve between them a stand-in."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from deployments import router as module
from deployments import router_client, router_line
from deployments.messages import Word
from deployments.router_client import RouterClient
from deployments.router_line import RouterLine
from tests.deployments.fleet import Fleet, ticket
from tests.deployments.serve_calls import Method, Stream

STREAMS = {"session", "lane"}


class Serve:
    """A handle that leads to one router; notes which methods are called through it."""

    def __init__(self, fleet: Fleet) -> None:
        self._router = fleet.router
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    @property
    def through(self) -> list[str]:
        return [name for name, _ in self.asked]

    def options(self, method_name: str = "", **_: Any) -> Any:
        return getattr(self, method_name) if method_name else self

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.asked.append((name, arguments))
            answer = getattr(self._router, name)(*arguments)
            return Stream(answer) if name in STREAMS else asyncio.ensure_future(answer)

        return Method(call)


class Pair:
    """A client of a router, and their lane."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.serve: Any = Serve(self.fleet)
        self.words: list[Word] = []
        self.client = RouterClient(self.serve, "g", random.Random(0), 60.0, 9, self.words.append)
        kept = (self.client.keep_session(), self.client.keep_lane())
        self.tasks = [asyncio.create_task(one) for one in kept]

    @property
    def line(self) -> RouterLine:
        return self.client._line

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)
        assert self.fleet.router._doors is not None
        self.fleet.router._doors.close()


@pytest.fixture
async def pair(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    monkeypatch.setattr(module, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(router_client, "ROUTER_RETRY_S", 0.001)
    monkeypatch.setattr(router_line, "RETRY_S", 0.001)
    pair = Pair()
    await until(lambda: pair.line._caller)
    yield pair
    await pair.close()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def test_what_is_frequent_goes_over_the_lane(pair: Pair) -> None:
    await pair.fleet.report("r")
    assert await pair.client.place(ticket("a"), bounced=False) == "r"
    assert await pair.client.admit([ticket("b"), ticket("c", again=True)]) is None
    pair.client.release("a", finished=True)
    await until(lambda: pair.fleet.grants() == 2)
    assert set(pair.serve.through) == STREAMS
    assert pair.words == [None]


async def test_who_stops_waiting_gives_its_ticket_up(pair: Pair) -> None:
    waits = asyncio.create_task(pair.client.place(ticket("a"), bounced=False))
    await until(lambda: pair.fleet.grants() == 1)
    waits.cancel()
    await until(lambda: pair.fleet.grants() == 0)


async def test_a_release_goes_the_way_that_its_ticket_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over a lane that came meanwhile it would arrive first, and the place be held for ever."""
    monkeypatch.setattr(module, "get_node_ip_address", lambda: "127.0.0.1")
    pair = Pair()
    early = asyncio.create_task(pair.client.place(ticket("early"), bounced=False))
    await until(lambda: "acquire" in pair.serve.through and pair.line.direct)
    late = asyncio.create_task(pair.client.place(ticket("late"), bounced=False))
    await until(lambda: pair.fleet.grants() == 2)
    for task, name in ((early, "early"), (late, "late")):
        task.cancel()
        pair.client.release(name, finished=False)
    await until(lambda: pair.fleet.grants() == 0 and not pair.client._released)
    released = [asked for name, asked in pair.serve.asked if name == "release"]
    assert released == [({"early": False},)]
    await until(lambda: not pair.client._slow)
    await pair.close()


async def test_without_the_lane_calls_go_through_serve_until_there_is_another(pair: Pair) -> None:
    waits = asyncio.create_task(pair.client.place(ticket("a"), bounced=False))
    await until(lambda: pair.fleet.grants() == 1)
    first = pair.line._lane
    assert first is not None
    first.close()
    await until(lambda: pair.line._lane not in (None, first))
    await pair.fleet.report("r")
    assert await waits == "r"
    assert pair.fleet.grants() == 1
    calls = len(pair.serve.through)
    assert await pair.client.place(ticket("b"), bounced=False) == "r"
    assert len(pair.serve.through) == calls


async def test_before_there_is_a_lane_calls_go_through_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_USE_TLS", "1")
    pair = Pair()
    await until(lambda: "lane" in pair.serve.through and pair.fleet.router._doors)
    await pair.fleet.report("r")
    assert await pair.client.place(ticket("a"), bounced=False) == "r"
    assert pair.serve.through.count("acquire") == 1
    await pair.close()
