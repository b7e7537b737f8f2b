"""Guest: who came through a door, and what it calls; `deployments.caller` is the other end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from deployments.calls import detached
from deployments.lane import Lane
from deployments.messages import Ask, TakeBack, Told

Methods: TypeAlias = Mapping[str, Callable[..., Awaitable[Any]]]

logger = logging.getLogger(__name__)


class Guest:
    """Answers calls, side by side; those that nobody waits for any more are cancelled.

    Args:
        methods: what can be called, by name.
        lane: to who calls.
    """

    def __init__(self, methods: Methods, lane: Lane) -> None:
        self._methods = methods
        self._lane = lane
        self._running: dict[int, asyncio.Task[None]] = {}

    def came(self, message: Ask | TakeBack) -> None:
        if isinstance(message, TakeBack):
            if (task := self._running.get(message.number)) is not None:
                task.cancel()
            return
        number = message.number
        task = self._running[number] = detached(self._answer(message))
        task.add_done_callback(lambda _: self._running.pop(number))

    def room(self) -> None:
        pass  # answers are few

    def ended(self) -> None:
        for task in self._running.values():
            task.cancel()

    async def _answer(self, ask: Ask) -> None:
        try:
            self._lane.send(Told(ask.number, await self._methods[ask.method](*ask.arguments)))
        except Exception as error:
            logger.exception("a call of %s failed: a bug", ask.method)
            self._lane.send(Told(ask.number, error=repr(error)))
