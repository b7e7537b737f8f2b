"""Calls through a Serve handle, and tasks that outlive the request that started them."""

import asyncio
from collections.abc import Awaitable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

import grpc  # type: ignore[import-untyped]
from ray.exceptions import (
    ActorDiedError,
    NodeDiedError,
    OwnerDiedError,
    RayActorError,
    WorkerCrashedError,
)
from ray.serve.exceptions import DeploymentUnavailableError, ReplicaUnavailableError

T = TypeVar("T")

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

_DEAD = (ActorDiedError, NodeDiedError, WorkerCrashedError)


class Gone(Exception):
    """The process that was called is gone, cannot be reached, or was stopped before it answered.

    Attributes:
        certain: it is known to be dead.
    """

    def __init__(self, reason: str, *, certain: bool = False) -> None:
        super().__init__(reason)
        self.certain = certain


async def answer_of(response: Awaitable[T]) -> T:
    """Wait for the answer to a call through a Serve handle.

    Raises:
        Gone: there will be none.
        grpc.aio.AioRpcError: the message is larger than messages may be.
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
        if _is_too_large(error):
            raise
        raise Gone(repr(error), certain=isinstance(error, _DEAD)) from error


def _is_too_large(error: Exception) -> bool:
    """Whether a message was refused for its size: nothing is the matter with the other process."""
    return (
        isinstance(error, grpc.aio.AioRpcError)
        and error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    )


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
