"""KeepAlive: notices when nothing has been said for a while."""

import asyncio
from collections.abc import Callable


class KeepAlive:
    """Calls when there was silence for so long, and again after as long. Use ``close``.

    One timer that looks once a period: words are many and silences few.

    Args:
        period_s: the longest silence.
        on_silence: called after one.
    """

    def __init__(self, period_s: float, on_silence: Callable[[], None]) -> None:
        self._period_s = period_s
        self._on_silence = on_silence
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._timer = self._loop.call_at(self._heard + period_s, self._look)

    def heard(self) -> None:
        """Something is said now."""
        self._heard = self._loop.time()

    def close(self) -> None:
        """Call no more."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        if now >= self._heard + self._period_s:
            self._heard = now
            self._on_silence()
        self._timer = self._loop.call_at(self._heard + self._period_s, self._look)
