"""A gateway's end of a stream, without a network."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from deployments.channel import HandleChannel, ReplicaLost
from deployments.messages import Goodbye, Refusal, RefusalKind, ReplicaInfo
from engine.request import SamplingParams
from engine.submission import Submission

INFO = ReplicaInfo("f", 16, 10, 100)
SUBMISSION = Submission("k", (1,), SamplingParams())


def event(key: str, token: int) -> Any:
    return (key, (token,), "", None, None, None)


class FakeStream:
    """What a handle's call to a generator returns: cancelling ends it on the far side."""

    def __init__(self, messages: AsyncIterator[Any]) -> None:
        self._messages = messages
        self._next: asyncio.Future[Any] | None = None
        self.cancelled = False

    async def __anext__(self) -> Any:
        self._next = asyncio.ensure_future(anext(self._messages))
        return await self._next

    def cancel(self) -> None:
        self.cancelled = True
        if self._next is not None:
            self._next.cancel()


class FakeHandle:
    """Stands for a Serve handle: remembers the pin, hands out a scripted stream."""

    def __init__(self, stream: Callable[[], AsyncIterator[Any]], answer: Any = None) -> None:
        self._stream = stream
        self._answer = answer
        self.streams: list[FakeStream] = []
        self.reachable = False
        self.pins: set[str] = set()
        self.opened = 0
        self.calls: list[tuple[Any, ...]] = []

    def options(self, **options: Any) -> "FakeHandle":
        if "session_id" in options:
            self.pins.add(options["session_id"])
        if options.get("method_name") == "submit":
            return Method(self, self._call)  # type: ignore[return-value]
        if options.get("method_name") == "stream":
            return Method(self, self._open)  # type: ignore[return-value]
        if options.get("method_name") == "ping":
            return Method(self, self._ping)  # type: ignore[return-value]
        return self

    def _open(self, gateway: str) -> FakeStream:
        self.opened += 1
        self.streams.append(FakeStream(self._stream()))
        return self.streams[-1]

    async def _ping(self) -> None:
        if not self.reachable:
            raise ActorUnavailableError("gone", b"\0" * 16)

    async def _call(self, *arguments: Any) -> Any:
        self.calls.append(arguments)
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


class Method:
    def __init__(self, handle: FakeHandle, function: Callable[..., Any]) -> None:
        self.remote = function


def channel(handle: FakeHandle, lost: list[ReplicaLost] | None = None) -> HandleChannel:
    on_lost = ([] if lost is None else lost).append
    return HandleChannel(handle, "gw", on_lost)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("reachable", [True, False])
@pytest.mark.parametrize("error", [ActorUnavailableError("gone", b"\0" * 16), ActorDiedError()])
async def test_a_lost_replica_is_told_of_even_if_nobody_used_it(
    error: Exception, reachable: bool
) -> None:
    """Else the router keeps a dead replica, and its figures, until a request is sent there."""
    goon = asyncio.Event()

    async def stream() -> AsyncIterator[Any]:
        yield INFO
        await goon.wait()
        raise error

    lost: list[ReplicaLost] = []
    handle = FakeHandle(stream)
    handle.reachable = reachable
    await channel(handle, lost).connect("r")
    assert not lost
    goon.set()
    for _ in range(20):
        await asyncio.sleep(0)
    # In doubt it is said once; and once more if the replica does not answer either.
    dead = isinstance(error, ActorDiedError)
    assert [(one.replica, one.certain) for one in lost] == [("r", dead)] * (
        1 if dead or reachable else 2
    )


async def test_a_replica_that_says_goodbye_is_not_told_of() -> None:
    """It has told the router itself; what it had goes on elsewhere."""
    goon = asyncio.Event()

    async def stream() -> AsyncIterator[Any]:
        yield INFO
        await goon.wait()
        yield (event("a", 1),)
        yield Goodbye()

    lost: list[ReplicaLost] = []
    link = await channel(FakeHandle(stream), lost).connect("r")
    heard: list[Any] = []
    link.listen("a", heard.append)
    goon.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert (heard[0], heard[1].left, lost) == (event("a", 1), True, [])


async def test_a_replica_that_has_gone_already_can_only_say_goodbye() -> None:
    async def stream() -> AsyncIterator[Any]:
        yield Goodbye()

    with pytest.raises(ReplicaLost) as caught:
        await channel(FakeHandle(stream)).connect("r")
    assert caught.value.left


@pytest.mark.parametrize("word", ["r", frozenset({"s"})], ids=["given up", "not there"])
async def test_a_replica_is_dropped_on_the_routers_word(word: str | frozenset[str]) -> None:
    """One that hangs keeps its stream open for ever: only its silence shows it."""

    async def stream() -> AsyncIterator[Any]:
        yield INFO
        await asyncio.Event().wait()

    lost: list[ReplicaLost] = []
    handle = FakeHandle(stream)
    links = channel(handle, lost)
    link = await links.connect("r")
    heard: list[Any] = []
    link.listen("a", heard.append)
    for other in (None, "unknown", frozenset({"r"})):
        links.heed(other)
    assert heard == []
    links.heed(word)
    assert isinstance(heard[0], ReplicaLost)
    assert handle.streams[0].cancelled
    for _ in range(20):
        await asyncio.sleep(0)
    assert lost == []
    assert await links.connect("r") is not link


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

    link = await channel(handle := FakeHandle(stream, answer)).connect("r")
    heard: list[Any] = []
    link.listen("other", heard.append)
    with pytest.raises(ReplicaLost):
        await link.submit(SUBMISSION)
    # Nor does anybody else get anything from it any more.
    assert isinstance(heard[0], ReplicaLost)
    assert handle.streams[0].cancelled


async def test_a_refusal_is_passed_on() -> None:
    async def stream() -> AsyncIterator[Any]:
        yield INFO
        await asyncio.Event().wait()

    refusal = Refusal(RefusalKind.QUEUE_FULL)
    link = await channel(handle := FakeHandle(stream, refusal)).connect("r")
    assert await link.submit(SUBMISSION, 2.5, "trace") == refusal
    ((_, *arguments),) = handle.calls
    assert arguments == [SUBMISSION, 2.5, "trace"], "as `Replica.submit` takes them"
