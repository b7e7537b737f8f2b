"""Scales: the ranges that plots side by side share, so that they can be compared."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from experiments.report.percentiles import percentile
from experiments.report.targets import Targets
from experiments.simulator.outcome import Run

MOST_PRIORITIES: Final = 6
_FLOOR_S: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Scales:
    """What all runs of a report have room in.

    Attributes:
        seconds: of the longest run.
        replicas: the most that were wanted, serving or starting.
        waiting: the most requests that waited in the router, or in the replicas.
        ttft_low_s, ttft_high_s: nearly all times to first token lie between.
        priorities: in the runs, most urgent first; of more than can be told apart, the busiest.
    """

    seconds: float
    replicas: int
    waiting: int
    ttft_low_s: float
    ttft_high_s: float
    priorities: Sequence[int]

    @classmethod
    def of(cls, runs: Sequence[Run], targets: Targets) -> "Scales":
        """Return the scales for these runs."""
        samples = [sample for run in runs for sample in run.samples]
        times = sorted(
            outcome.ttft_s
            for run in runs
            for outcome in run.outcomes
            if outcome.status == "ok" and outcome.ttft_s is not None
        )
        counted = Counter(outcome.priority for run in runs for outcome in run.outcomes)
        busiest = sorted(counted, key=lambda priority: (-counted[priority], -priority))
        low, high = (percentile(times, 1), times[-1]) if times else (0.1, 1.0)
        if targets.ttft_s is not None:
            low, high = min(low, targets.ttft_s), max(high, targets.ttft_s)
        return cls(
            seconds=max((run.seconds for run in runs), default=0.0),
            replicas=max((max(s.wanted, s.serving + s.starting) for s in samples), default=0),
            waiting=max((max(s.queued, s.waiting) for s in samples), default=0),
            ttft_low_s=max(_FLOOR_S, low * 0.8),
            ttft_high_s=max(_FLOOR_S * 2, high * 1.25),
            priorities=sorted(busiest[:MOST_PRIORITIES], reverse=True),
        )
