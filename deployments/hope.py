"""Hope: how long requests wait for a replica while none serves."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from deployments.calls import detached

ASK_S = 1.0

logger = logging.getLogger(__name__)


class Hope:
    """A bounded wait for the first replica, from the start or from the loss of the last one.

    Args:
        hold_s: how long it lasts, in seconds.
        expire: called when it ends without a replica.
        wake: asks for a replica, which is what makes an autoscaler start one, and returns when
            there seems to be one. Called again and again. None where they come by themselves.
    """

    def __init__(
        self,
        hold_s: float,
        expire: Callable[[], None],
        wake: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._hold_s = hold_s
        self._expire = expire
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self._waking: asyncio.Task[None] | None = None
        self.failed = False
        """It has expired, and no replica has come since."""

    @property
    def alive(self) -> bool:
        """Whether it has begun and not ended."""
        return self._timer is not None

    def begin(self) -> None:
        """Hope from now on; nothing changes if it does already."""
        if self._timer is not None:
            return
        self._timer = asyncio.get_running_loop().call_later(self._hold_s, self._give_up)
        if self._wake is not None:
            self._waking = detached(self._ask(self._wake))

    def fulfil(self) -> None:
        """There is a replica."""
        self._end()
        self.failed = False

    def _give_up(self) -> None:
        self._end()
        self.failed = True
        self._expire()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None

    async def _ask(self, wake: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                # It may be answered by one that is about to go.
                await wake()
            except Exception:
                logger.exception("cannot ask for a replica")
            await asyncio.sleep(ASK_S)
