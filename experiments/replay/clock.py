"""Clock: seconds from a load's beginning."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time and waits for it."""

    def now(self) -> float:
        """Return the seconds since the load began; negative before."""

    async def until(self, at: float) -> None:
        """Return once it is ``at``; at once if it was."""


class RealClock:
    """The time that passes.

    Args:
        begins_in: seconds from now until the load begins.
    """

    def __init__(self, begins_in: float = 0.0) -> None:
        self._began = time.perf_counter() + begins_in

    def now(self) -> float:
        return time.perf_counter() - self._began

    async def until(self, at: float) -> None:
        # More than once: event loops count in milliseconds, and from when their turn began.
        while (left := at - self.now()) > 0:
            await asyncio.sleep(left)
