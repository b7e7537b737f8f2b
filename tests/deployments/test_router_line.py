"""A gateway and a router with a lane between them: both real, Serve between them a stand-in."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from deployments import router as module
from deployments import router_client
from deployments.messages import Word
from deployments.router_client import RouterClient
from tests.deployments.fleet import Fleet, ticket


class Serve:
    """A handle that leads to one router; notes which methods are called through it."""

    def __init__(self, fleet: Fleet) -> None:
        self._router = fleet.router
        self.through: list[str] = []

    def options(self, method_name: str = "", **_: Any) -> Any:
        return Method(self._called(method_name)) if method_name else self

    def _called(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.through.append(name)
            answer = getattr(self._router, name)(*arguments)
            return answer if name == "session" else asyncio.ensure_future(answer)

        return call


class Method:
    def __init__(self, remote: Callable[..., Any]) -> None:
        self.remote = remote


class Pair:
    """A client of a router, once it has its lane."""

    def __init__(self) -> None:
        self.fleet = Fleet(door=True)
        self.serve = Serve(self.fleet)
        self.words: list[Word] = []
        self.client = RouterClient(
            self.serve,  # type: ignore[arg-type]
            "g",
            random.Random(0),
            60.0,
            9,
            self.words.append,
        )
        self.session = asyncio.create_task(self.client.keep_session())


@pytest.fixture
async def pair(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    monkeypatch.setattr(module, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(router_client, "ROUTER_RETRY_S", 0.001)
    pair = Pair()
    await until(lambda: pair.client._line._caller)
    yield pair
    pair.session.cancel()
    await asyncio.wait([pair.session])
    assert pair.fleet.router._doors is not None
    pair.fleet.router._doors.close()


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
    assert pair.serve.through == ["session"]
    assert pair.words == [None], "the door is no word of a replica"


async def test_who_stops_waiting_gives_its_ticket_up(pair: Pair) -> None:
    waits = asyncio.create_task(pair.client.place(ticket("a"), bounced=False))
    await until(lambda: pair.fleet.grants() == 1)
    waits.cancel()
    await until(lambda: pair.fleet.grants() == 0)


async def test_without_the_lane_calls_go_through_serve_and_keep_their_place(pair: Pair) -> None:
    waits = asyncio.create_task(pair.client.place(ticket("a"), bounced=False))
    await until(lambda: pair.fleet.grants() == 1)
    lane = pair.client._line._lane
    assert lane is not None
    lane.close()
    await until(lambda: "acquire" in pair.serve.through)
    await pair.fleet.report("r")
    assert await waits == "r"
    assert pair.fleet.grants() == 1
