"""Whether Serve still wants a replica.

Serve tells a replica's code that it is to go only after its last request has ended, and the
streams to the gateways would never end by themselves. But Serve takes the replica out of what
it tells all handles at once: so a replica calls itself through a handle, and when the handle
no longer knows it, it is to go.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from ray.serve.exceptions import ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from deployments.calls import Gone, answer_of
from deployments.periods import AGAIN_S, MISSES, PROBE_S
from deployments.pinning import MEMBER

logger = logging.getLogger(__name__)


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
    was, misses = False, 0
    while True:
        call: Any = probe.remote()
        try:
            await answer_of(call)
            now, misses = True, 0
        except Gone as error:
            # Anything else says nothing about what Serve wants.
            misses += isinstance(error.__cause__, ReplicaUnavailableError)
            now = was and misses < MISSES
        except Exception:
            # Whatever it was, the next call may say more; without any, a stop would be an end.
            logger.exception("cannot ask whether replica %s is wanted", replica)
            now = was
        if now is not was:
            was = now
            yield now
        await asyncio.sleep(min(period_s, AGAIN_S) if misses else period_s)
