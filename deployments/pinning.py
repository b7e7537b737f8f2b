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

from ray.serve.exceptions import ReplicaUnavailableError
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

APPEAR_TIMEOUT_S = 5.0
"""How long a call waits for a replica that this process has not heard of yet."""

REMEMBERED = 1024
"""Replicas that are remembered at least, so that one that is gone is not waited for."""


class PinnedRequestRouter(RequestRouter):
    """Route a call to the replica whose id is the call's session id, and nowhere else.

    A replica that is gone, or that turned the call away, raises
    ``ReplicaUnavailableError`` at once: the base class would go on trying for ever, and
    another replica holds neither the stream nor the grant. A replica that was never seen
    here is waited for: it reports itself to our Router a moment before Serve tells the
    handles about it.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        # The ones that run come last.
        self._seen: dict[str, None] = {}
        self._appear_timeout: float = kwargs.get("appear_timeout_s", APPEAR_TIMEOUT_S)
        # Set at the next update, and then replaced.
        self._updated = asyncio.Event()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
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
        if not is_retry:
            if wanted and wanted not in self._seen:
                await self._wait_for(wanted)
            found = _find(self.curr_replicas.values(), wanted)
            if found is not None:
                return found
        raise ReplicaUnavailableError(wanted)

    async def _wait_for(self, wanted: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._appear_timeout):
                while wanted not in self._seen:
                    await self._updated.wait()


def _find(replicas: Iterable[RunningReplica], wanted: str) -> RunningReplica | None:
    return next((one for one in replicas if one.replica_id.unique_id == wanted), None)
