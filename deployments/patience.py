"""Patience: how long a sequence goes on without a replica before it is refused."""

import time
from collections.abc import Callable
from typing import Final

MAX_LOSSES: Final = 3
"""Replicas that may die under one request before it is given up: it may be what kills them."""

_LONGEST_PAUSE_S = 1.0


class Patience:
    """Measures how long replicas have been out of reach, one after the other.

    Args:
        hold_s: for how long that is borne, in seconds.
        clock: seconds, never going back.
    """

    def __init__(self, hold_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._hold_s = hold_s
        self._clock = clock
        self._misses = 0
        self._since: float | None = None  # when it first was without one

    @property
    def over(self) -> bool:
        """Whether it has been without a replica for as long as requests are held."""
        return self._since is not None and self._clock() - self._since > self._hold_s

    def found(self) -> None:
        """A replica took it."""
        self._misses, self._since = 0, None

    def lost(self) -> None:
        """Its replica is gone, or could not be reached."""
        if self._since is None:
            self._since = self._clock()

    def pause_s(self) -> float:
        """How long to wait before the next try, longer each time."""
        pause = min(0.01 * (2**self._misses - 1), _LONGEST_PAUSE_S)
        self._misses += 1
        return pause
