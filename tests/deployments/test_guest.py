"""A gateway and a replica with a lane between them: both real, Serve between them a stand-in."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from deployments.caller import CallFailed
from deployments.channel import HandleChannel, Link, ReplicaLost
from deployments.doors import enter
from deployments.messages import RefusalKind
from deployments.replica import Replica
from engine.request import SamplingParams
from engine.submission import Submission
from tests.deployments.replica_house import House
from tests.deployments.serve_calls import Method, Stream
from tests.deployments.test_lane import Ear

EVENT = ("a", (7,), "x", "stop", None, None)


class Serve:
    """A handle that leads to one replica, and not to what should go over the lane."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.streams: list[Stream] = []

    def options(self, **options: Any) -> Any:
        calls: dict[str, Callable[..., Any]] = {
            "stream": self._stream,
            "abort": self._replica.abort,
            "ping": self._replica.ping,
            "submit": lambda *_: pytest.fail("through Serve"),
        }
        return Method(calls[options["method_name"]]) if "method_name" in options else self

    def _stream(self, gateway: str) -> Stream:
        self.streams.append(Stream(self._replica.stream(gateway)))
        return self.streams[-1]


class Pair:
    """A gateway's link to a replica, over a lane."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.lost: list[ReplicaLost] = []
        self.heard: list[Any] = []
        self.serve = Serve(house.replica)
        self.channel = HandleChannel(self.serve, "g", self.lost.append)  # type: ignore[arg-type]

    async def link(self) -> Link:
        link = await self.channel.connect("r")
        link.listen("a", self.heard.append)
        return link


@pytest.fixture
async def pair(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    house = House(monkeypatch)
    yield Pair(house)
    house.close()


def submission(key: str = "a", **params: Any) -> Submission:
    return Submission(key, (1,), SamplingParams(**params))


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def test_requests_and_tokens_go_over_the_lane_and_the_stream_is_silent(pair: Pair) -> None:
    link = await pair.link()
    assert await link.submit(submission()) is None
    pair.house.engine.end("a")
    pair.house.engine.tell()
    await until(lambda: pair.heard)
    assert pair.heard == [EVENT]
    (stream,) = pair.serve.streams
    assert stream.came == [link.info]
    assert pair.house.replica._owner == {}


async def test_refusals_come_back_and_so_does_a_bug(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = await pair.link()
    pair.house.engine.full = True
    pair.house.finish_compiling("a")
    refusal = await link.submit(submission(grammar="a grammar"))
    assert refusal is not None
    assert refusal.kind is RefusalKind.QUEUE_FULL

    def breaks(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(pair.house.engine, "submit", breaks)
    with pytest.raises(CallFailed, match="ZeroDivisionError"):
        await link.submit(submission())


async def test_a_goodbye_comes_after_all_that_was_made(pair: Pair) -> None:
    """What is read after it would be computed again elsewhere."""
    link = await pair.link()
    await link.submit(submission())
    pair.house.wanted.put_nowait(True)
    pair.house.wanted.put_nowait(False)
    await until(lambda: pair.house.replica._leaving)
    pair.house.engine.end("a")
    pair.house.engine.tell()
    await until(lambda: len(pair.heard) == 2)
    event, lost = pair.heard
    assert (event, lost.left) == (EVENT, True)
    await until(lambda: not pair.house.replica._boxes)
    assert pair.lost == []


async def test_a_gateway_that_goes_takes_its_requests_with_it(pair: Pair) -> None:
    link = await pair.link()
    await link.submit(submission())
    pair.channel.heed("r")
    await until(lambda: pair.house.engine.aborted)
    assert pair.house.engine.aborted == ["a"]
    assert pair.house.replica._boxes == {}


async def test_the_stream_of_a_gateway_ends_with_its_socket(pair: Pair) -> None:
    """Nothing else could be read from it, and what it asked for would be computed for nobody."""
    replica = pair.house.replica
    stream = replica.stream("g")
    info: Any = await anext(stream)
    lane = await enter(info.door, Ear())
    assert lane is not None
    assert await replica.submit("g", submission()) is None
    lane.close()
    async with asyncio.timeout(5):
        assert [message async for message in stream] == []
    assert (pair.house.engine.aborted, replica._boxes) == (["a"], {})


async def test_a_socket_that_breaks_is_a_loss_also_for_who_waits_for_an_answer(pair: Pair) -> None:
    link = await pair.link()
    asked = asyncio.ensure_future(link.submit(submission("b", grammar="never compiled")))
    await until(lambda: "b" in pair.house.engine.compiling)
    pair.house.replica._boxes["g"]._lane.close()  # type: ignore[union-attr]
    with pytest.raises(ReplicaLost):
        await asked
    assert isinstance(pair.heard[0], ReplicaLost)
    await until(lambda: pair.lost)
    # It can be called, so it is no more than out of reach, and the next link is as good as new.
    assert [one.certain for one in pair.lost] == [False]
    pair.heard.clear()
    pair.house.finish_compiling("b")
    again = await pair.link()
    assert again is not link
    assert await again.submit(submission()) is None


async def test_a_gateway_that_reads_slowly_gets_several_steps_in_one_message(pair: Pair) -> None:
    link = await pair.link()
    for key in ("a", "b"):
        link.listen(key, pair.heard.append)
        await link.submit(submission(key))
    lane = pair.house.replica._boxes["g"]._lane
    assert lane is not None
    sent: list[Any] = []
    lane.send = sent.append  # type: ignore[method-assign]
    lane.pause_writing()
    for key in ("a", "b"):
        pair.house.engine.end(key)
        pair.house.engine.tell()
    await until(lambda: not pair.house.replica._owner)
    assert sent == []
    lane.resume_writing()
    assert [[event[0] for event in batch] for batch in sent] == [["a", "b"]]
