"""Ahead: bodies that are made before they are needed, so that no request waits for its own."""

from collections import deque
from typing import Final, Protocol

_AHEAD: Final = 256


class Bodies(Protocol):
    """Makes the body of each request of a load."""

    def of(self, index: int) -> bytes:
        """Return the body of a request."""


class Ahead:
    """Bodies in the order of their requests.

    Args:
        bodies: makes them.
        requests: of the load.
        ahead: so many are kept at most: prompts may be long, and loads too.
    """

    def __init__(self, bodies: Bodies, requests: int, ahead: int = _AHEAD) -> None:
        self._bodies = bodies
        self._requests = requests
        self._ahead = ahead
        self._ready: deque[bytes] = deque()
        self._next = 0

    def fill(self) -> None:
        """Make as many as are kept."""
        while self.make_one():
            pass

    def make_one(self) -> bool:
        """Make one more; False if enough are there."""
        if self._next == self._requests or len(self._ready) == self._ahead:
            return False
        self._ready.append(self._bodies.of(self._next))
        self._next += 1
        return True

    def take(self) -> bytes:
        """Return the next one."""
        if not self._ready:
            self.make_one()
        return self._ready.popleft()
