"""A gateway's side of the Router."""

import asyncio
import contextlib
import logging
import random
import time
from dataclasses import replace
from typing import Any

from ray.serve.handle import DeploymentHandle

from deployments.channel import Gone, answer_of, detached
from deployments.messages import Refusal, RefusalKind, ReplicaInfo, unavailable
from deployments.metrics import Counts
from router.ticket import Ticket

ROUTER_RETRY_S = 0.1
ROUTER_WAIT_S = 30.0
"""How long requests wait for a router that is being restarted."""

logger = logging.getLogger(__name__)


class RouterClient:
    """Asks the Router, and waits for one that is being restarted.

    Args:
        handle: of the Router.
        gateway: this process's name.
        rng: spreads the times after which clients are to come back.
    """

    def __init__(self, handle: DeploymentHandle, gateway: str, rng: random.Random) -> None:
        plain = handle.options(request_serialization="pickle", response_serialization="pickle")
        self._gateway = gateway
        self._rng = rng
        self._handle = plain
        self._acquire = plain.options(method_name="acquire")
        self._bounced = plain.options(method_name="bounced")
        self._lost = plain.options(method_name="lost")
        self._release = plain.options(method_name="release")
        self._session = plain.options(method_name="session", stream=True)
        self._released: dict[str, bool] = {}
        self._releasing: asyncio.Task[None] | None = None

    async def place(self, ticket: Ticket, *, bounced: bool) -> str | Refusal:
        """Return the replica to go to, or why there is none; cancelling gives the ticket up."""
        method = self._bounced if bounced else self._acquire
        down: float | None = None
        while True:
            asked = time.monotonic()
            response: Any = method.remote(self._gateway, ticket)
            try:
                answer: str | Refusal = await answer_of(response)
                if not _abandoned(answer):
                    return answer
            except asyncio.CancelledError:
                response.cancel()
                raise
            except Gone:
                pass
            now = time.monotonic()
            # Waiting in the queue of a router that lived is not waiting for a router.
            if down is None or now - asked > ROUTER_WAIT_S:
                down = now
            if now - down > ROUTER_WAIT_S:
                return unavailable(self._rng)
            await asyncio.sleep(ROUTER_RETRY_S)
            method, ticket = self._acquire, replace(ticket, again=True)

    def release(self, ticket: str, *, finished: bool) -> None:
        """Give up a ticket, soon; several go in one message."""
        self._released[ticket] = finished
        if self._releasing is None or self._releasing.done():
            self._releasing = detached(self._send_releases())

    async def lost(self, replica: str) -> None:
        """Say that a replica cannot be reached."""
        call: Any = self._lost.remote(replica)
        with contextlib.suppress(Gone):
            await answer_of(call)

    async def describe(self) -> ReplicaInfo | Refusal:
        """Return what the replicas are, as soon as there is one."""
        call: Any = self._handle.describe.remote()
        try:
            answer: ReplicaInfo | Refusal = await answer_of(call)
        except Gone:
            return unavailable(self._rng)
        return answer

    async def healthy(self) -> bool:
        """Whether a replica makes progress."""
        call: Any = self._handle.healthy.remote()
        with contextlib.suppress(Gone, TimeoutError):
            async with asyncio.timeout(2.0):
                return bool(await answer_of(call))
        return False

    async def count(self, counts: Counts) -> None:
        """Hand over what was counted.

        Raises:
            Gone: there is no router.
        """
        call: Any = self._handle.count.remote(counts)
        await answer_of(call)

    async def metrics(self, model: str) -> str:
        """Return the Prometheus page.

        Raises:
            Gone: there is no router.
        """
        call: Any = self._handle.metrics.remote(model)
        return str(await answer_of(call))

    async def keep_session(self) -> None:
        """Hold a stream to the router open for ever, so that it notices when this process dies."""
        while True:
            try:
                await answer_of(self._one_session())
            except Exception as error:
                logger.info("the session with the router ended: %s", error)
            await asyncio.sleep(ROUTER_RETRY_S)

    async def _one_session(self) -> None:
        session: Any = self._session.remote(self._gateway)
        async for _ in session:
            pass

    async def _send_releases(self) -> None:
        while self._released:
            released, self._released = self._released, {}
            call: Any = self._release.remote(released)
            try:
                await answer_of(call)
            except Gone:
                # It may be the connection that failed, and the router know the tickets still; a
                # new router passes them over. A ticket is never used again after its release.
                self._released = released | self._released
                await asyncio.sleep(ROUTER_RETRY_S)


def _abandoned(answer: str | Refusal) -> bool:
    """Whether the router gave the ticket up by itself: it had lost sight of this process."""
    return isinstance(answer, Refusal) and answer.kind is RefusalKind.ABANDONED
