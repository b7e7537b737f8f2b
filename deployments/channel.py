"""How tokens get from a replica to a gateway: one long stream for each pair of them.

After each step a replica sends one message to each gateway, with the news of all that
gateway's requests, so the cost of a message is shared by a whole batch. ``Channel`` is
the seam: what stands on either side does not know what carries the messages.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from ray.serve.handle import DeploymentHandle

from deployments.caller import Caller
from deployments.calls import Gone, answer_of, detached
from deployments.doors import enter
from deployments.lane import Lane
from deployments.messages import (
    Batch,
    Event,
    Goodbye,
    Refusal,
    RefusalKind,
    ReplicaInfo,
    Told,
    Word,
)
from engine.submission import Submission

PING_TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)


class ReplicaLost(Exception):
    """A replica, or the stream from it, is gone, and with it what it had running.

    Attributes:
        replica: its id.
        reason: what was seen, for logs.
        certain: it is known to be dead, not just out of reach.
        left: it was to go, and has said goodbye.
    """

    def __init__(
        self, replica: str, reason: str, *, certain: bool = False, left: bool = False
    ) -> None:
        super().__init__(replica, reason)
        self.replica = replica
        self.reason = reason
        self.certain = certain
        self.left = left

    def __str__(self) -> str:
        return f"lost replica {self.replica}: {self.reason}"


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

    async def submit(
        self, submission: Submission, within_s: float | None = None, traceparent: str = ""
    ) -> Refusal | None:
        """Give the replica a request; None means that it took it.

        Args:
            submission: the request.
            within_s: seconds after which it is not to be started any more; None is never.
            traceparent: the W3C trace context for the replica's spans; empty for none.

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
    """A ``Link`` over a Serve handle whose calls are pinned to one replica.

    The stream through the handle is open for as long as the link is. Where the replica has a door
    for this gateway, what is frequent goes over a lane of their own instead: requests and tokens.
    """

    def __init__(self, handle: DeploymentHandle, gateway: str, replica: str) -> None:
        self.replica = replica
        self.lost: ReplicaLost | None = None
        self._gateway = gateway
        pinned = handle.options(
            session_id=replica, request_serialization="pickle", response_serialization="pickle"
        )
        self._submit = pinned.options(method_name="submit")
        self._abort = pinned.options(method_name="abort")
        self._ping = pinned.options(method_name="ping")
        self._stream: Any = pinned.options(method_name="stream", stream=True).remote(gateway)
        self._listeners: dict[str, Listener] = {}
        self._lane: Lane | None = None
        self._caller: Caller | None = None
        self.opened: asyncio.Future[ReplicaInfo] = asyncio.get_running_loop().create_future()

    @property
    def info(self) -> ReplicaInfo:
        return self.opened.result()

    def listen(self, key: str, listener: Listener) -> None:
        if self.lost is None:
            self._listeners[key] = listener
        else:
            listener(self.lost)

    def forget(self, key: str) -> None:
        self._listeners.pop(key, None)

    async def submit(
        self, submission: Submission, within_s: float | None = None, traceparent: str = ""
    ) -> Refusal | None:
        if self.lost is not None:
            raise self.lost
        if self._caller is not None:
            answer = await self._caller.call("submit", submission, within_s, traceparent)
        else:
            call: Any = self._submit.remote(self._gateway, submission, within_s, traceparent)
            try:
                answer = await answer_of(call)
            except Gone as error:
                raise self.fail(str(error), certain=error.certain) from error
        if answer is not None and answer.kind is RefusalKind.NO_STREAM:
            raise self.fail("it knows no stream to this gateway")
        return answer

    async def abort(self, keys: Sequence[str]) -> None:
        # A replica that cannot be reached has already dropped what this gateway had there.
        call: Any = self._abort.remote(tuple(keys))
        with contextlib.suppress(Gone):
            await answer_of(call)

    async def answers(self) -> bool:
        """Whether the replica can be called, its stream aside."""
        call: Any = self._ping.remote()
        with contextlib.suppress(Gone, TimeoutError):
            async with asyncio.timeout(PING_TIMEOUT_S):
                await answer_of(call)
                return True
        return False

    async def pump(self) -> None:
        """Hand out what comes until the stream ends; then everyone learns of the loss."""
        reason, certain, left = "its stream ended", False, False
        try:
            while True:
                message = await answer_of(anext(self._stream))
                if isinstance(message, Goodbye):
                    reason, left = "it is to go", True
                elif self.opened.done():
                    self._deliver(message)
                else:
                    await self._open(message)
        except StopAsyncIteration:
            pass
        except Gone as error:
            reason, certain = str(error), error.certain
        except Exception:
            if self.lost is None:  # else it was given up, and its stream cancelled
                raise
        finally:
            self.fail(reason, certain=certain, left=left)

    def fail(self, reason: str, *, certain: bool = False, left: bool = False) -> ReplicaLost:
        """Give the replica up: everyone learns of it, and the stream from it ends.

        Returns:
            The loss; the first one, if there was one before.
        """
        if self.lost is not None:
            return self.lost
        lost = self.lost = ReplicaLost(self.replica, reason, certain=certain, left=left)
        self._stream.cancel()
        if self._lane is not None:
            self._lane.close()
        if self._caller is not None:
            self._caller.fail(lost)
        if not self.opened.done():
            self.opened.set_exception(lost)
            self.opened.exception()  # marks it as seen, should nobody wait any more
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener(lost)
        return lost

    async def _open(self, info: ReplicaInfo) -> None:
        lane = None if info.door is None else await enter(info.door, self)
        if self.lost is None:
            self._lane = lane
            self._caller = None if lane is None else Caller(lane)
            self.opened.set_result(info)
        elif lane is not None:
            lane.close()

    # ---- what comes over the lane -----------------------------------------------------

    def came(self, message: Any) -> None:
        if isinstance(message, Told):
            assert self._caller is not None
            self._caller.told(message)
        elif isinstance(message, Goodbye):
            self.fail("it is to go", left=True)
        else:
            self._deliver(message)

    def room(self) -> None:
        pass  # requests are few

    def ended(self) -> None:
        self.fail("its socket was closed")

    def _deliver(self, batch: Batch) -> None:
        for event in batch:
            # No listener: the request was dropped while these tokens were on their way.
            if (listener := self._listeners.get(event[0])) is not None:
                listener(event)


class HandleChannel:
    """A ``Channel`` over Serve handles.

    Args:
        handle: of the replicas.
        gateway: this process's name.
        on_lost: called when the stream from a replica has ended without a goodbye, also when
            nobody had anything running there; and once more if it cannot be called either.
    """

    def __init__(
        self, handle: DeploymentHandle, gateway: str, on_lost: Callable[[ReplicaLost], None]
    ) -> None:
        self._handle = handle
        self._gateway = gateway
        self._on_lost = on_lost
        self._links: dict[str, HandleLink] = {}

    async def connect(self, replica: str) -> Link:
        link = self._links.get(replica)
        # One that was lost may still be here until its own task has had its turn.
        if link is None or link.lost is not None:
            link = self._links[replica] = HandleLink(self._handle, self._gateway, replica)
            detached(self._keep(link))
        # Shielded: others wait for the same link, whoever of them is cancelled.
        await asyncio.shield(link.opened)
        return link

    def heed(self, word: Word) -> None:
        """Give replicas up on the router's word."""
        if isinstance(word, str):
            lost = [word]
        else:
            lost = [] if word is None else [name for name in self._links if name not in word]
        for replica in lost:
            if (link := self._links.pop(replica, None)) is not None:
                link.fail("the router has given it up", certain=True)

    async def _keep(self, link: HandleLink) -> None:
        try:
            await link.pump()
        except Exception:
            logger.exception("reading from replica %s failed", link.replica)
        finally:
            known = self._links.get(link.replica) is link
            if known:
                del self._links[link.replica]
        lost = link.lost
        if known and lost is not None and not lost.left:
            self._on_lost(lost)
            if not lost.certain and not await link.answers():
                self._on_lost(lost)
