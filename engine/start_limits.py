"""StartLimits: the requests that are not to be started after some tick."""

from engine.rank import Rank
from engine.waiting import WaitingQueue


class StartLimits:
    """Ids by the last tick at which each may be started.

    Asking costs nothing while none is over, adding and dropping as little as in the
    waiting queue, which keeps them in order.
    """

    def __init__(self) -> None:
        self._ticks: dict[int, int] = {}
        self._queue = WaitingQueue()

    def add(self, id: int, tick: int) -> None:
        """Watch ``id``, which was never watched before; ``tick`` is the last good one."""
        self._ticks[id] = tick
        self._queue.push(Rank(tick, tick, id), id)

    def discard(self, id: int) -> None:
        """Watch ``id`` no longer: it has started, or gone."""
        if self._ticks.pop(id, None) is not None:
            self._queue.discard(id)

    def pop_over(self, now: int) -> list[int]:
        """Take out the ids whose tick is before ``now``, earliest first."""
        over: list[int] = []
        while self._ticks and self._ticks[self._queue.peek()] < now:
            id = self._queue.pop()
            del self._ticks[id]
            over.append(id)
        return over
