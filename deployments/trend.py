"""Trend: what happened lately, from snapshots of ``GET /load`` that are some time apart."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

WINDOW_S: Final = 60.0
RATE_S: Final = 5.0

Load: TypeAlias = dict[str, Any]
"""What `deployments.load.snapshot` returns."""


@dataclass(frozen=True, slots=True)
class Lately:
    """What the last minute was like; None is what is not known yet.

    Where snapshots are further apart than the time said here, it is the time between two.

    Attributes:
        tokens_per_s: over the last `RATE_S`.
        preemptions_per_min: over the last `WINDOW_S`.
        first_tokens: how many came in the last `WINDOW_S`.
        ttft_p50, ttft_p90: how long they took, in seconds, as fine as the buckets.
    """

    tokens_per_s: float | None
    preemptions_per_min: float | None
    first_tokens: int
    ttft_p50: float | None
    ttft_p90: float | None


class Trend:
    """Compares a snapshot with those before it. Times are in seconds and must not go back."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Load]] = deque()

    def add(self, at: float, load: Load) -> Lately:
        """Take a snapshot, and return what it says together with the earlier ones."""
        # A new router counts from 0: what is older cannot be compared.
        if self._seen and _tokens(load) < _tokens(self._seen[-1][1]):
            self._seen.clear()
        self._seen.append((at, load))
        while len(self._seen) > 2 and self._seen[0][0] < at - WINDOW_S:
            self._seen.popleft()
        bounds, now = load["ttft"]["bounds"], load["ttft"]["counts"]
        before = self._seen[0][1]["ttft"]["counts"]
        counts = [a - b for a, b in zip(now, before, strict=True)]
        preempted = self._rate("preemptions", WINDOW_S)
        return Lately(
            tokens_per_s=self._rate("generated_tokens", RATE_S),
            preemptions_per_min=None if preempted is None else 60 * preempted,
            first_tokens=sum(counts),
            ttft_p50=quantile(0.5, bounds, counts),
            ttft_p90=quantile(0.9, bounds, counts),
        )

    def _rate(self, name: str, seconds: float) -> float | None:
        if len(self._seen) == 1:
            return None
        *earlier, (now, load) = self._seen
        then, before = next((one for one in earlier if one[0] >= now - seconds), earlier[-1])
        amount: int = load["totals"][name] - before["totals"][name]
        return amount / (now - then)


def quantile(share: float, bounds: Sequence[float], counts: Sequence[int]) -> float | None:
    """Return the value that ``share`` of those counted are at most; None without any.

    Between two bounds it is as if values were spread evenly. Above all bounds it is the last.
    """
    rank = share * sum(counts)
    if not rank:
        return None
    low, below = 0.0, 0
    for high, count in zip(bounds, counts, strict=False):
        if count and below + count >= rank:
            return low + (high - low) * (rank - below) / count
        low, below = high, below + count
    return bounds[-1]


def _tokens(load: Load) -> int:
    tokens: int = load["totals"]["generated_tokens"]
    return tokens
