"""Measure: a figure that is read off a run, and the measures that studies share."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from experiments.report.percentiles import percentile
from experiments.report.targets import Targets
from experiments.simulator.outcome import Outcome, Run


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a run.

    Attributes:
        key: unique in the study.
        head: what a table calls it.
        unit: of what a table shows; empty for a bare number.
        of: reads it off a run; None if it has none.
        shown: what a table shows is so many times the figure.
    """

    key: str
    head: str
    unit: str
    of: Callable[[Run], float | None]
    shown: float = 1.0


def ttft(percent: int, *, priority: int | None = None, head: str | None = None) -> Measure:
    """Time to first token; ``percent`` 100 is the longest."""
    key = f"ttft_{percent}" + ("" if priority is None else f"_{priority}")
    return Measure(
        key,
        head or f"TTFT {_called(percent)}",
        "s",
        lambda run: _percentile((o.ttft_s for o in _answered(run, priority)), percent),
    )


def wait(percent: int, *, priority: int | None = None, head: str | None = None) -> Measure:
    """Time until a request is placed on a replica; ``percent`` 100 is the longest."""
    key = f"wait_{percent}" + ("" if priority is None else f"_{priority}")
    return Measure(
        key,
        head or f"wait {_called(percent)}",
        "s",
        lambda run: _percentile((o.wait_s for o in _answered(run, priority)), percent),
    )


def tpot(percent: int, *, head: str | None = None) -> Measure:
    """Time per output token after the first."""
    return Measure(
        f"tpot_{percent}",
        head or f"TPOT {_called(percent)}",
        "ms",
        lambda run: _percentile((o.tpot_s for o in _answered(run, None)), percent),
        1000.0,
    )


def missed(targets: Targets, head: str = "missed") -> Measure:
    """Share of the requests that missed a target."""
    return Measure(
        "missed",
        head,
        "%",
        lambda run: _share(sum(not targets.met(o) for o in run.outcomes), len(run.outcomes)),
        100.0,
    )


def cached() -> Measure:
    """Share of the prompts' tokens that a prefix cache had."""
    return Measure(
        "cached",
        "cached",
        "% of prompt tokens",
        lambda run: _share(
            sum(o.cached_tokens for o in run.outcomes),
            sum(o.prompt_tokens for o in run.outcomes if o.attempts),
        ),
        100.0,
    )


def counted(key: str, head: str) -> Measure:
    """One of the run's counts, warm-up included."""
    return Measure(key, head, "", lambda run: run.counts.get(key))


def replica_hours() -> Measure:
    """Replica-hours that were paid for, warm-up included."""
    return Measure("replica_hours", "replica-hours", "", lambda run: run.replica_s / 3600)


def _answered(run: Run, priority: int | None) -> Sequence[Outcome]:
    return [
        one for one in run.outcomes
        if one.status == "ok" and (priority is None or one.priority == priority)
    ]  # fmt: skip


def _percentile(values: Iterable[float | None], percent: int) -> float | None:
    ordered = sorted(value for value in values if value is not None)
    return percentile(ordered, percent) if ordered else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _called(percent: int) -> str:
    return {50: "median", 100: "longest"}.get(percent, f"p{percent}")
