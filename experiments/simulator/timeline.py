"""Timeline: simulated time, and what happens in it."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, TypeAlias

Action: TypeAlias = Callable[[Any], None]


class Timeline:
    """Calls what was planned, in the order of time; at one time, in the order of planning.

    Attributes:
        now: seconds from the load's beginning; not to be changed from outside.
    """

    __slots__ = ("_events", "_serial", "_stopped", "now")

    def __init__(self, start: float = 0.0) -> None:
        """Begin at ``start`` with nothing planned."""
        self.now = start
        self._events: list[tuple[float, int, Action, Any]] = []
        self._serial = 0
        self._stopped = False

    def __len__(self) -> int:
        """How much is planned."""
        return len(self._events)

    def clock(self) -> float:
        """Return the time, for those who take a clock."""
        return self.now

    def at(self, time: float, action: Action, subject: Any = None) -> None:
        """Plan to call ``action(subject)`` at a time, now at the earliest."""
        self._serial = serial = self._serial + 1
        heappush(self._events, (max(time, self.now), serial, action, subject))

    def after(self, seconds: float, action: Action, subject: Any = None) -> None:
        """Plan to call ``action(subject)`` in so many seconds."""
        self.at(self.now + seconds, action, subject)

    def stop(self) -> None:
        """Let `run` return after the call that is under way."""
        self._stopped = True

    def run(self) -> None:
        """Let time pass until `stop`, or until nothing is planned."""
        events, pop = self._events, heappop
        while events and not self._stopped:
            self.now, _, action, subject = pop(events)
            action(subject)
