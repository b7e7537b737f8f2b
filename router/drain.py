"""Drain: how fast places come free, and so when it is worth asking again."""

from collections import deque
from random import Random

WINDOW_S = 30.0
# Weight, in seconds of observation, of the estimate that stands in for missing history.
_PRIOR_S = 1.0
# Weight of the newest lifetime in the running mean, and the mean before anything has ended.
_LIFETIME_STEP = 0.1
_FIRST_LIFETIME_S = 5.0
_JITTER = 0.25


class Drain:
    """The rate at which grants end, measured while tickets wait.

    Only a backlog shows what the replicas can do: in quiet times few requests end because few
    come. So ends are counted from the moment the queue last became non-empty, over at most the
    last `WINDOW_S`. While there is little of that, the estimate leans on Little's law: requests
    that run now, divided by how long requests lasted so far.
    """

    __slots__ = ("_backlog_since", "_ends", "_lifetime_s")

    def __init__(self) -> None:
        self._backlog_since: float | None = None
        # (whole second, ends in it): as long as the window, however many requests end.
        self._ends: deque[tuple[int, int]] = deque()
        self._lifetime_s = _FIRST_LIFETIME_S

    def observe_queue(self, now: float, waiting: int) -> None:
        """Say how many tickets wait; call it whenever that may have changed."""
        if not waiting:
            self._backlog_since = None
        elif self._backlog_since is None:
            self._backlog_since = now
            self._ends.clear()

    def ended(self, now: float, lifetime_s: float | None) -> None:
        """Count a grant that ended; its lifetime in seconds if it is known."""
        if lifetime_s is not None:
            self._lifetime_s += _LIFETIME_STEP * (lifetime_s - self._lifetime_s)
        if self._backlog_since is None:
            return
        second = int(now)
        count = self._ends.pop()[1] if self._ends and self._ends[-1][0] == second else 0
        self._ends.append((second, count + 1))
        self._forget(now)

    def rate(self, now: float, live: int) -> float:
        """Ends per second, > 0, with ``live`` grants out."""
        self._forget(now)
        since = now if self._backlog_since is None else self._backlog_since
        seen_s = min(now - since, WINDOW_S)
        expected = max(live, 1) / max(self._lifetime_s, 1e-3)
        ends = sum(count for _, count in self._ends)
        return (ends + expected * _PRIOR_S) / (seen_s + _PRIOR_S)

    def _forget(self, now: float) -> None:
        oldest = now - WINDOW_S
        while self._ends and self._ends[0][0] < oldest:
            self._ends.popleft()


def spread(seconds: float, least: float, most: float, rng: Random) -> float:
    """Move ``seconds`` by up to a quarter at random, the result within [least, most].

    The middle is clamped before the move: clamping the result would give many callers the
    very same bound, and bring them all back at once.
    """
    middle = min(max(seconds, least / (1 - _JITTER)), most / (1 + _JITTER))
    return min(max(middle * rng.uniform(1 - _JITTER, 1 + _JITTER), least), most)


def no_earlier(seconds: float, least: float, rng: Random) -> float:
    """Move ``seconds``, or ``least`` if that is more, later at random, by up to a half."""
    return max(seconds, least) * rng.uniform(1.0, 1 + 2 * _JITTER)
