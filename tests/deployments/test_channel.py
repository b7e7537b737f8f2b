"""The two ends of a stream, without a network between them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from deployments.channel import Gone, HandleChannel, Outbox, ReplicaLost, answer_of
from deployments.messages import Refusal, RefusalKind, ReplicaInfo
from engine.request import SamplingParams
from engine.submission import Submission

INFO = ReplicaInfo("f", 16, 10, 100)
SUBMISSION = Submission("k", (1,), SamplingParams())


def event(key: str, token: int) -> Any:
    return (key, (token,), "", None, None)


class FakeHandle:
    """Stands for a Serve handle: remembers the pin, hands out a scripted stream."""

    def __init__(self, stream: Callable[[], AsyncIterator[Any]], answer: Any = None) -> None:
        self._stream = stream
        self._answer = answer
        self.pins: set[str] = set()
        self.opened = 0

    def options(self, **options: Any) -> "FakeHandle":
        if "session_id" in options:
            self.pins.add(options["session_id"])
        if options.get("method_name") == "submit":
            return Method(self, self._call)  # type: ignore[return-value]
        if options.get("method_name") == "stream":
            return Method(self, self._open)  # type: ignore[return-value]
        return self

    def _open(self, gateway: str) -> AsyncIterator[Any]:
        self.opened += 1
        return self._stream()

    async def _call(self, *arguments: Any) -> Any:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


class Method:
    def __init__(self, handle: FakeHandle, function: Callable[..., Any]) -> None:
        self.remote = function


def channel(handle: FakeHandle, lost: list[str] | None = None) -> HandleChannel:
    on_lost = ([] if lost is None else lost).append
    return HandleChannel(handle, "gw", on_lost)  # type: ignore[arg-type]


async def test_batches_carry_what_came_meanwhile() -> None:
    box = Outbox()
    batches = box.batches()
    box.put(event("a", 1))
    box.put(event("b", 2))
    box.flush()
    assert await anext(batches) == (event("a", 1), event("b", 2))
    for token in (3, 4):
        box.put(event("a", token))
        box.flush()
    assert await anext(batches) == (event("a", 3), event("a", 4))
    box.put(event("a", 5))
    box.close()
    assert [batch async for batch in batches] == [(event("a", 5),)]


async def test_one_stream_for_all_who_connect() -> None:
    async def stream() -> AsyncIterator[Any]:
        yield INFO
        await asyncio.Event().wait()

    handle = FakeHandle(stream)
    links = channel(handle)
    first, second = await asyncio.gather(links.connect("r"), links.connect("r"))
    assert first is second
    assert (handle.opened, handle.pins, first.info) == (1, {"r"}, INFO)


async def test_events_reach_those_who_listen_and_the_loss_everyone() -> None:
    goon = asyncio.Event()

    async def stream() -> AsyncIterator[Any]:
        yield INFO
        await goon.wait()
        yield (event("a", 1), event("unknown", 2), event("b", 3))
        raise ActorUnavailableError("gone", b"\0" * 16)

    handle = FakeHandle(stream)
    links = channel(handle)
    link = await links.connect("r")
    heard: dict[str, list[Any]] = {"a": [], "b": []}
    for key, events in heard.items():
        link.listen(key, events.append)
    link.listen("c", lambda _: pytest.fail("forgotten"))
    link.forget("c")
    goon.set()
    while len(heard["a"]) + len(heard["b"]) < 4:
        await asyncio.sleep(0)
    assert heard["a"][0] == event("a", 1)
    assert heard["b"][0] == event("b", 3)
    assert all(isinstance(events[1], ReplicaLost) for events in heard.values())
    # Who comes too late hears of it at once; who connects anew gets a new stream.
    late: list[Any] = []
    link.listen("d", late.append)
    assert isinstance(late[0], ReplicaLost)
    assert await links.connect("r") is not link


async def test_a_replica_that_cannot_be_reached_is_lost() -> None:
    async def stream() -> AsyncIterator[Any]:
        raise ActorUnavailableError("gone", b"\0" * 16)
        yield

    with pytest.raises(ReplicaLost, match="lost replica r"):
        await channel(FakeHandle(stream)).connect("r")


async def test_a_lost_replica_is_told_of_even_if_nobody_used_it() -> None:
    """Else the router keeps a dead replica, and its figures, until a request is sent there."""
    goon = asyncio.Event()

    async def stream() -> AsyncIterator[Any]:
        yield INFO
        await goon.wait()

    lost: list[str] = []
    await channel(FakeHandle(stream), lost).connect("r")
    assert not lost
    goon.set()
    async with asyncio.timeout(5):
        while not lost:
            await asyncio.sleep(0)
    assert lost == ["r"]


async def test_whose_cancellation_it_is() -> None:
    """A router or replica that is being stopped cancels calls: no reason to stop here too."""

    async def stopped() -> None:
        raise asyncio.CancelledError

    with pytest.raises(Gone):
        await answer_of(stopped())
    mine = asyncio.create_task(answer_of(asyncio.Event().wait()))
    await asyncio.sleep(0)
    mine.cancel()
    with pytest.raises(asyncio.CancelledError):
        await mine


@pytest.mark.parametrize(
    "answer",
    [
        ActorUnavailableError("gone", b"\0" * 16),
        asyncio.CancelledError(),
        Refusal(RefusalKind.NO_STREAM),
    ],
)
async def test_a_submit_that_did_not_arrive_is_a_loss(answer: Any) -> None:
    async def stream() -> AsyncIterator[Any]:
        yield INFO
        await asyncio.Event().wait()

    link = await channel(FakeHandle(stream, answer)).connect("r")
    with pytest.raises(ReplicaLost):
        await link.submit(SUBMISSION)


async def test_a_refusal_is_passed_on() -> None:
    async def stream() -> AsyncIterator[Any]:
        yield INFO
        await asyncio.Event().wait()

    refusal = Refusal(RefusalKind.QUEUE_FULL)
    link = await channel(FakeHandle(stream, refusal)).connect("r")
    assert await link.submit(SUBMISSION) == refusal
