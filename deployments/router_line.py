"""RouterLine: calls of the Router, over a lane or, without one, through Serve."""

import asyncio
import logging
from typing import Any, Final

from ray.serve.handle import DeploymentHandle

from deployments.caller import Caller
from deployments.calls import Gone, answer_of
from deployments.doors import Door, enter
from deployments.lane import Lane

RETRY_S: Final = 1.0

logger = logging.getLogger(__name__)


class RouterLine:
    """Calls the Router.

    What it returns is awaited, as what Serve returns is, through `deployments.calls.answer_of`,
    and has a method ``cancel``.

    Args:
        handle: of the Router.
    """

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._methods: dict[str, Any] = {}
        self._stream: Any = None
        self._lane: Lane | None = None
        self._caller: Caller | None = None

    @property
    def direct(self) -> bool:
        """Whether calls go over a lane."""
        return self._caller is not None

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the Router."""
        if self._caller is not None:
            return self._caller.call(method, *arguments)
        return self.through_serve(method, *arguments)

    def through_serve(self, method: str, *arguments: Any) -> Any:
        """The same, but not over a lane: what is to come after a call that did not, either."""
        if method not in self._methods:
            self._methods[method] = getattr(self._handle, method)
        return self._methods[method].remote(*arguments)

    async def keep(self) -> None:
        """Have a lane to each router, if it can be reached when it is first heard of; for ever."""
        while True:
            try:
                await answer_of(self._follow())
            except Exception as error:
                logger.info("the lane to the router ended: %s", error)
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        self._stream = self._handle.options(stream=True).lane.remote()
        try:
            async for door in self._stream:
                await self._open(door)
        finally:
            self._close()

    async def _open(self, door: Door) -> None:
        self._lane = await enter(door, self)
        self._caller = None if self._lane is None else Caller(self._lane)

    def _close(self) -> None:
        """Call through Serve from now on; what is open has no answer."""
        lane, self._lane = self._lane, None
        caller, self._caller = self._caller, None
        if lane is not None:
            lane.close()
        if caller is not None:
            caller.fail(Gone("the lane to the router has ended"))

    # ---- what comes over the lane -----------------------------------------------------

    def came(self, message: Any) -> None:
        if self._caller is not None:
            self._caller.told(message)

    def room(self) -> None:
        pass  # calls are few

    def ended(self) -> None:
        self._close()
        # There will be another one.
        self._stream.cancel()
