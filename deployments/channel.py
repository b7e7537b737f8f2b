"""How tokens get from a replica to a gateway: one long stream for each pair of them.

After each step a replica sends one message to each gateway, with the news of all that
gateway's requests, so the cost of a message is shared by a whole batch. ``Channel`` is
the seam: the handle-based one below can be replaced by a socket without touching what
stands on either side.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc  # type: ignore[import-untyped]
from ray.exceptions import NodeDiedError, OwnerDiedError, RayActorError, WorkerCrashedError
from ray.serve.exceptions import DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from deployments.messages import Batch, Event, Refusal, RefusalKind, ReplicaInfo
from engine.submission import Submission

UNREACHABLE = (
    RayActorError,
    NodeDiedError,
    OwnerDiedError,
    WorkerCrashedError,
    ReplicaUnavailableError,
    DeploymentUnavailableError,
    grpc.RpcError,
)
"""What a call raises when the other process is gone; an error of its code is not among them."""

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Gone(Exception):
    """The process that was called is gone, or was stopped before it answered."""


async def answer_of(response: Awaitable[T]) -> T:
    """Wait for the answer to a call through a Serve handle.

    Raises:
        Gone: there will be none.
    """
    try:
        return await response
    except asyncio.CancelledError as error:
        # Serve raises it also when the other process, being stopped, cancels what it has.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise Gone("it is being stopped") from error
    except UNREACHABLE as error:
        raise Gone(repr(error)) from error


class ReplicaLost(Exception):
    """A replica, or the stream from it, is gone, and with it what it had running.

    Attributes:
        replica: its id.
        reason: what was seen, for logs.
    """

    def __init__(self, replica: str, reason: str) -> None:
        super().__init__(replica, reason)
        self.replica = replica
        self.reason = reason

    def __str__(self) -> str:
        return f"lost replica {self.replica}: {self.reason}"


_running: set[asyncio.Task[Any]] = set()
"""Holds detached tasks: the event loop itself would let go of one that nobody waits for."""


def detached(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task that belongs to no request.

    Serve keeps the current request in a context variable and cancels every call made
    under it when the client leaves. What must outlive the client starts here.
    """
    task = asyncio.get_running_loop().create_task(coroutine, context=Context())
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


Listener: TypeAlias = Callable[["Event | ReplicaLost"], None]
"""Called with each event of one request; a loss is the last thing it ever hears."""


class Link(Protocol):
    """An open stream from one replica."""

    replica: str

    @property
    def info(self) -> ReplicaInfo:
        """What the replica is."""

    def listen(self, key: str, listener: Listener) -> None:
        """Call ``listener`` with what comes for ``key`` from now on."""

    def forget(self, key: str) -> None:
        """Pass over what comes for ``key`` from now on."""

    async def submit(self, submission: Submission) -> Refusal | None:
        """Give the replica a request; None means that it took it.

        Raises:
            ReplicaLost: it cannot be reached.
        """

    async def abort(self, keys: Sequence[str]) -> None:
        """Drop requests; unknown ones, and a lost replica, are fine."""


class Channel(Protocol):
    """All links of one gateway."""

    async def connect(self, replica: str) -> Link:
        """Return the link to a replica, opened if need be.

        Raises:
            ReplicaLost: it cannot be reached.
        """


class HandleLink:
    """A ``Link`` over a Serve handle whose calls are pinned to one replica."""

    def __init__(self, handle: DeploymentHandle, gateway: str, replica: str) -> None:
        self.replica = replica
        self._gateway = gateway
        pinned = handle.options(
            session_id=replica, request_serialization="pickle", response_serialization="pickle"
        )
        self._submit = pinned.options(method_name="submit")
        self._abort = pinned.options(method_name="abort")
        self._stream = pinned.options(method_name="stream", stream=True)
        self._listeners: dict[str, Listener] = {}
        self._lost: ReplicaLost | None = None
        self.opened: asyncio.Future[ReplicaInfo] = asyncio.get_running_loop().create_future()

    @property
    def info(self) -> ReplicaInfo:
        return self.opened.result()

    def listen(self, key: str, listener: Listener) -> None:
        if self._lost is None:
            self._listeners[key] = listener
        else:
            listener(self._lost)

    def forget(self, key: str) -> None:
        self._listeners.pop(key, None)

    async def submit(self, submission: Submission) -> Refusal | None:
        call: Any = self._submit.remote(self._gateway, submission)
        try:
            answer: Refusal | None = await answer_of(call)
        except Gone as error:
            raise ReplicaLost(self.replica, str(error)) from error
        if answer is not None and answer.kind is RefusalKind.NO_STREAM:
            raise ReplicaLost(self.replica, "it knows no stream to this gateway")
        return answer

    async def abort(self, keys: Sequence[str]) -> None:
        # A replica that cannot be reached has already dropped what this gateway had there.
        call: Any = self._abort.remote(tuple(keys))
        with contextlib.suppress(Gone):
            await answer_of(call)

    async def pump(self) -> None:
        """Hand out what comes until the stream ends; then everyone learns of the loss."""
        reason = "its stream ended"
        try:
            stream: Any = self._stream.remote(self._gateway)
            async for message in stream:
                if self.opened.done():
                    self._deliver(message)
                else:
                    self.opened.set_result(message)
        except UNREACHABLE as error:
            reason = repr(error)
        finally:
            self._fail(ReplicaLost(self.replica, reason))

    def _deliver(self, batch: Batch) -> None:
        for event in batch:
            # No listener: the request was dropped while these tokens were on their way.
            if (listener := self._listeners.get(event[0])) is not None:
                listener(event)

    def _fail(self, lost: ReplicaLost) -> None:
        self._lost = lost
        if not self.opened.done():
            self.opened.set_exception(lost)
            self.opened.exception()  # marks it as seen, should nobody wait any more
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener(lost)


class HandleChannel:
    """A ``Channel`` over Serve handles.

    Args:
        handle: of the replicas.
        gateway: this process's name.
        on_lost: called with a replica's id when the stream from it has ended, also when
            nobody had anything running there.
    """

    def __init__(
        self, handle: DeploymentHandle, gateway: str, on_lost: Callable[[str], None]
    ) -> None:
        self._handle = handle
        self._gateway = gateway
        self._on_lost = on_lost
        self._links: dict[str, HandleLink] = {}

    async def connect(self, replica: str) -> Link:
        link = self._links.get(replica)
        if link is None:
            link = self._links[replica] = HandleLink(self._handle, self._gateway, replica)
            detached(self._keep(link))
        # Shielded: others wait for the same link, whoever of them is cancelled.
        await asyncio.shield(link.opened)
        return link

    async def _keep(self, link: HandleLink) -> None:
        # The link is gone from the table in the very turn in which everyone learns of its loss.
        try:
            await link.pump()
        except Exception:
            logger.exception("reading from replica %s failed", link.replica)
        finally:
            if self._links.get(link.replica) is link:
                del self._links[link.replica]
            self._on_lost(link.replica)


class Outbox:
    """A replica's end of a stream: what one gateway has yet to be sent.

    A gateway that reads slowly gets several steps in one message.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._wake = asyncio.Event()
        self._closed = False

    def put(self, event: Event) -> None:
        """Add an event; ``flush`` sends what was added."""
        self._events.append(event)

    def flush(self) -> None:
        """Send what was added since the last time as one message."""
        self._wake.set()

    def close(self) -> None:
        """End the stream when everything is sent."""
        self._closed = True
        self._wake.set()

    async def batches(self) -> AsyncIterator[Batch]:
        """Yield messages until the box is closed."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._events:
                events, self._events = self._events, []
                yield tuple(events)
            if self._closed and not self._events:
                return
