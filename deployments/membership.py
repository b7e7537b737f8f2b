"""Whether Serve still wants a replica.

Serve tells a replica's code that it is to go only after its last request has ended, and the
streams to the gateways would never end by themselves. But Serve takes the replica out of what
it tells all handles at once: so a replica calls itself through a handle, and when the handle
no longer knows it, it is to go.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ray.serve.exceptions import ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from deployments.calls import Gone, answer_of
from deployments.pinning import MEMBER

PROBE_S = 0.5


async def membership(
    handle: DeploymentHandle, replica: str, period_s: float = PROBE_S
) -> AsyncIterator[bool]:
    """Yield True when Serve counts the replica among those that run, False when no more.

    Only changes are yielded, and nothing before the first True: a replica that starts is not
    known yet. It may be wanted again, if Serve's controller had lost sight of it.

    Args:
        handle: to the replica's own deployment; its method ``ping`` is called.
        replica: its id.
        period_s: seconds between two calls.
    """
    probe = handle.options(session_id=MEMBER + replica, method_name="ping")
    was = False
    while True:
        call: Any = probe.remote()
        try:
            await answer_of(call)
            now = True
        except Gone as error:
            # Anything else says nothing about what Serve wants.
            now = was and not isinstance(error.__cause__, ReplicaUnavailableError)
        if now is not was:
            was = now
            yield now
        await asyncio.sleep(period_s)
