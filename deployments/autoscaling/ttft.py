"""TtftWindow: the recent time to first token, from what gateways count."""

from collections import deque
from itertools import pairwise
from typing import Final

from deployments.metrics import HISTOGRAMS, Counts

WINDOW_S: Final = 30.0

_FAMILY: Final = "time_to_first_token_seconds"
# Lower and upper edge of each bucket. What is above all bounds counts as the highest bound.
_EDGES: Final = (*pairwise((0.0, *HISTOGRAMS[_FAMILY][0])), (HISTOGRAMS[_FAMILY][0][-1],) * 2)


class TtftWindow:
    """Quantiles of the time to first token over the last `WINDOW_S`, as fine as the buckets.

    Times are of the caller's clock, in seconds, and must not go back.
    """

    __slots__ = ("_seconds", "_sum")

    def __init__(self) -> None:
        # (whole second, counts by bucket): as long as the window, however many gateways count.
        self._seconds: deque[tuple[int, list[int]]] = deque()
        self._sum = [0] * len(_EDGES)

    def add(self, now: float, counts: Counts) -> None:
        """Add what a gateway counted lately; other families are passed over."""
        for (family, _), histogram in counts.histograms.items():
            if family == _FAMILY:
                self._count(int(now), histogram.counts)
        self._forget(now)

    def quantile(self, now: float, share: float = 0.9) -> float | None:
        """Return the value that ``share`` of the first tokens came within; None without any."""
        self._forget(now)
        rank = share * sum(self._sum)
        if rank == 0:
            return None
        below = 0
        for (low, high), count in zip(_EDGES, self._sum, strict=True):
            if count and below + count >= rank:
                return low + (high - low) * (rank - below) / count
            below += count
        return _EDGES[-1][1]

    def clear(self) -> None:
        """Forget all: what another number of replicas took says nothing of these."""
        self._seconds.clear()
        self._sum = [0] * len(_EDGES)

    def _count(self, second: int, counts: list[int]) -> None:
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, [0] * len(_EDGES)))
        for held in (self._seconds[-1][1], self._sum):
            for bucket, count in enumerate(counts):
                held[bucket] += count

    def _forget(self, now: float) -> None:
        while self._seconds and self._seconds[0][0] < now - WINDOW_S:
            for bucket, count in enumerate(self._seconds.popleft()[1]):
                self._sum[bucket] -= count
