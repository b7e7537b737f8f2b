"""Against: the runs of an earlier report of the same load."""

from collections.abc import Sequence
from math import isclose
from pathlib import Path
from typing import Final

from experiments.loads.load import Arrival, Load
from experiments.report.record import RecordError, read_runs
from experiments.simulator.outcome import Outcome, Run

# Some formats of traces round times to nanoseconds.
_SAME_S: Final = 1e-6


def runs_of_same_load(folder: Path, load: Load) -> list[Run]:
    """Return the runs of an earlier report.

    Raises:
        RecordError: they are not there, or are of another load; names the first request that
            differs.
    """
    runs = read_runs(folder)
    for run in runs:
        if len(run.outcomes) != len(load.arrivals):
            raise RecordError(
                f"{folder}: {run.name} is a run of {len(run.outcomes)} requests, "
                f"but the load has {len(load.arrivals)}"
            )
        if difference := _difference(run.outcomes, load.arrivals):
            raise RecordError(f"{folder}: {run.name} is a run of another load: {difference}")
    return runs


def _difference(outcomes: Sequence[Outcome], arrivals: Sequence[Arrival]) -> str:
    """What the first request that differs has here and there; empty if all are the same."""
    for index, (there, here) in enumerate(zip(outcomes, arrivals, strict=True)):
        if not isclose(there.at, here.at, rel_tol=0.0, abs_tol=_SAME_S):
            return f"request {index} came at {there.at:g} s there, at {here.at:g} s here"
        for field in ("prompt_tokens", "priority", "tenant"):
            before, now = getattr(there, field), getattr(here, field)
            if before != now:
                return f"request {index} has {field} {before!r} there, {now!r} here"
    return ""
