"""What Serve's handles give, without Serve: calls of methods, and of generators."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any


class Method:
    """A method of a handle."""

    def __init__(self, remote: Callable[..., Any]) -> None:
        self.remote = remote


class Stream:
    """A call of a generator; keeps what came."""

    def __init__(self, messages: AsyncIterator[Any]) -> None:
        self._messages = messages
        self._task: asyncio.Task[Any] | None = None
        self.came: list[Any] = []

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Any:
        self._task = asyncio.ensure_future(self._next())
        self.came.append(await self._task)
        return self.came[-1]

    async def _next(self) -> Any:
        return await anext(self._messages)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
