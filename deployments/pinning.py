"""A Serve request router that sends each call to the replica its caller names.

Who gets a request is decided by our own Router; Serve only has to carry the call. The
caller puts the replica's id into the handle's session id::

    handle.options(session_id=replica_id).submit.remote(...)

Serve ships this class to every process that holds a handle, its controller included, by
value: nothing here may depend on what a module did at import time, and whatever state
there is belongs to the instance.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

from ray.serve.exceptions import DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

APPEAR_TIMEOUT_S = 5.0
"""How long a call waits for a replica that this process has not heard of yet."""

REMEMBERED = 1024
"""Replicas that are remembered at least, so that one that is gone is not waited for."""

LEAVING = 64
"""Replicas that can still be called after Serve has taken them out, the latest ones."""

MEMBER = "member/"
"""Before a replica's id: only if Serve counts it among those that are to run."""


class PinnedRequestRouter(RequestRouter):
    """Route a call to the replica whose id is the call's session id, and nowhere else.

    A replica that is gone raises ``ReplicaUnavailableError`` at once, one that turned the call
    away ``DeploymentUnavailableError``: the base class would go on trying for ever, and
    another replica holds neither the stream nor the grant. A replica that was never seen
    here is waited for: it reports itself to our Router a moment before Serve tells the
    handles about it. One that Serve is stopping is still called: it has requests to finish,
    and their clients may leave.

    A call without a session id goes to any replica and waits until there is one; that is
    how Serve's autoscaler is told that somebody waits.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        # The ones that run come last.
        self._seen: dict[str, None] = {}
        # Those that ran until an update, the latest ones last.
        self._leaving: dict[str, RunningReplica] = {}
        self._appear_timeout: float = kwargs.get("appear_timeout_s", APPEAR_TIMEOUT_S)
        # Set at the next update, and then replaced.
        self._updated = asyncio.Event()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        now = {replica.replica_id for replica in replicas}
        for key, replica in self.curr_replicas.items():
            if key not in now:
                self._leaving.pop(key.unique_id, None)
                self._leaving[key.unique_id] = replica
        while len(self._leaving) > LEAVING:
            del self._leaving[next(iter(self._leaving))]
        super().update_replicas(replicas)
        for replica in replicas:
            name = replica.replica_id.unique_id
            self._seen.pop(name, None)
            self._seen[name] = None
        while len(self._seen) > max(REMEMBERED, len(replicas)):
            del self._seen[next(iter(self._seen))]
        updated, self._updated = self._updated, asyncio.Event()
        updated.set()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        wanted = "" if pending_request is None else pending_request.metadata.session_id
        found = _find(candidate_replicas, wanted)
        return [] if found is None else [[found]]

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        wanted = pending_request.metadata.session_id
        if is_retry:
            # It turned the call away or is out of reach, which does not mean that it has gone.
            raise DeploymentUnavailableError(self._deployment_id)
        if not wanted:
            return await self._any()
        name = wanted.removeprefix(MEMBER)
        if name not in self._seen:
            await self._wait_for(name)
        found = _find(self.curr_replicas.values(), name)
        if found is None and name == wanted:
            found = self._leaving.get(name)
        if found is None:
            raise ReplicaUnavailableError(name)
        return found

    async def _any(self) -> RunningReplica:
        while not self.curr_replicas:
            await self._updated.wait()
        return next(iter(self.curr_replicas.values()))

    async def _wait_for(self, wanted: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._appear_timeout):
                while wanted not in self._seen:
                    await self._updated.wait()


def _find(replicas: Iterable[RunningReplica], wanted: str) -> RunningReplica | None:
    return next((one for one in replicas if one.replica_id.unique_id == wanted), None)
