"""A gateway's side of the Router."""

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import Any

from ray.serve.handle import DeploymentHandle

from deployments.channel import UNREACHABLE, detached
from deployments.messages import Refusal, RefusalKind, ReplicaInfo
from deployments.metrics import Counts
from router.ticket import Ticket

ROUTER_RETRY_S = 0.1
ROUTER_WAIT_S = 30.0
"""How long requests wait for a router that is being restarted."""


class RouterClient:
    """Asks the Router, and waits for one that is being restarted."""

    def __init__(self, handle: DeploymentHandle, gateway: str) -> None:
        plain = handle.options(request_serialization="pickle", response_serialization="pickle")
        self._gateway = gateway
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
        deadline = time.monotonic() + ROUTER_WAIT_S
        while True:
            response = method.remote(self._gateway, ticket)
            try:
                answer: str | Refusal = await response
                return answer
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    response.cancel()
                    raise
                # Not ours: it is the router that cancels what it has, since it is stopped.
            except UNREACHABLE:
                pass
            if time.monotonic() > deadline:
                return Refusal(RefusalKind.NO_REPLICA, retry_after=5.0)
            await asyncio.sleep(ROUTER_RETRY_S)
            method, ticket = self._acquire, replace(ticket, again=True)

    def release(self, ticket: str, *, finished: bool) -> None:
        """Give up a ticket, soon; several go in one message."""
        self._released[ticket] = finished
        if self._releasing is None or self._releasing.done():
            self._releasing = detached(self._send_releases())

    async def lost(self, replica: str) -> None:
        """Say that a replica cannot be reached."""
        with contextlib.suppress(*UNREACHABLE):
            await self._lost.remote(replica)

    async def describe(self) -> ReplicaInfo | Refusal:
        """Return what the replicas are, as soon as there is one."""
        return await self._ask(self._handle.describe)

    async def healthy(self) -> bool:
        """Whether a replica makes progress."""
        with contextlib.suppress(*UNREACHABLE, TimeoutError):
            async with asyncio.timeout(2.0):
                return bool(await self._handle.healthy.remote())
        return False

    async def count(self, counts: Counts) -> None:
        """Hand over what was counted."""
        await self._handle.count.remote(counts)

    async def metrics(self, counts: Counts, model: str) -> str:
        """Return the Prometheus page."""
        return str(await self._handle.metrics.remote(counts, model))

    async def keep_session(self) -> None:
        """Hold a stream to the router open for ever, so that it notices when this process dies."""
        while True:
            with contextlib.suppress(*UNREACHABLE):
                session: Any = self._session.remote(self._gateway)
                async for _ in session:
                    pass
            await asyncio.sleep(ROUTER_RETRY_S)

    async def _ask(self, method: DeploymentHandle) -> ReplicaInfo | Refusal:
        try:
            answer: ReplicaInfo | Refusal = await method.remote()
        except UNREACHABLE:
            return Refusal(RefusalKind.NO_REPLICA, retry_after=5.0)
        return answer

    async def _send_releases(self) -> None:
        while self._released:
            released, self._released = self._released, {}
            # A router that cannot be reached is a new one soon, which knows no grants.
            with contextlib.suppress(*UNREACHABLE):
                await self._release.remote(released)
