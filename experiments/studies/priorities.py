"""Who goes first: first come, strict priority, and priority with aging."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final

from deployments.config import ServeConfig
from experiments.loads.rules import with_priorities
from experiments.report.drawing import Plot
from experiments.report.table import Table
from experiments.simulator.outcome import Run
from experiments.simulator.scenario import Scenario
from experiments.studies.capacity import capacity
from experiments.studies.case import Case
from experiments.studies.findings import Findings
from experiments.studies.lines import Panel, lines
from experiments.studies.measure import Measure, ttft, wait
from experiments.studies.passing import longest_passed_s
from experiments.studies.pieces import piece
from experiments.studies.reference import config, step_time
from experiments.studies.study import Given, Study, Trace
from experiments.studies.tables import table

URGENT, NORMAL, BATCH = 2, 1, 0
SHARES: Final = f"{URGENT}:0.1,{NORMAL}:0.6,{BATCH}:0.3"
_CLASSES: Final = {URGENT: "urgent", NORMAL: "normal", BATCH: "batch"}
_STRICT_S: Final = 1_000_000.0
_RULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "first come": {"scheduling_policy": "fcfs"},
    "strict": {"aging_seconds": _STRICT_S},
    "aging, 60 s": {"aging_seconds": 60.0},
    "aging, 10 s": {"aging_seconds": 10.0},
}
_PERCENTS: Final = (80, 100, 120)


def _cases(given: Given) -> Iterator[Case]:
    replicas, seconds, warm_s = (1, 10.0, 0.0) if given.quick else (2, 480.0, 30.0)
    time, load = step_time(), given.loads["conversation"]
    most = replicas * capacity(config(1), load, time, 100 if given.quick else 600)
    for percent in _PERCENTS[-1:] if given.quick else _PERCENTS:
        for seed in range(given.seeds):
            part = piece(load, seed, given.seeds, most * percent / 100, seconds)
            part = with_priorities(part, SHARES, Random(f"{seed} priorities"))
            for variant, rule in _RULES.items():
                scenario = Scenario(variant, config(replicas, **rule), seed=seed)
                yield Case(f"{percent}%", variant, scenario, part, time, warm_s)


def _passed(high: int) -> Measure:
    """By how much later a request of ``high`` had come that passed one of the lowest class."""
    return Measure(
        f"passed_{high}",
        f"{_CLASSES[high]} passed {_CLASSES[BATCH]} by",
        "s",
        lambda run: longest_passed_s(run.outcomes, BATCH, high),
    )


def _bound(high: int) -> Measure:
    """What docs/scheduling.md says of that, at most."""

    def of(run: Run) -> float | None:
        if run.settings.get("scheduling_policy") == "fcfs":
            return 0.0
        aging_s = run.settings.get("aging_seconds", ServeConfig().aging_seconds)
        assert isinstance(aging_s, float)
        return None if aging_s >= _STRICT_S else (high - BATCH) * aging_s

    return Measure(f"bound_{high}", "at most", "s", of)


def _tables(findings: Findings) -> Mapping[str, Table]:
    heads = ("load", "rule")
    times = [f"ttft_{percent}_{one}" for one in _CLASSES for percent in (50, 99)]
    waits = [f"wait_100_{one}" for one in _CLASSES]
    passed = [key for one in (URGENT, NORMAL) for key in (f"passed_{one}", f"bound_{one}")]
    settings = findings.settings
    return {
        "ttft": table(findings, "Time to first token of each class", settings, times, heads),
        "wait": table(findings, "Longest wait of each class", settings, waits, heads),
        "passed": table(
            findings, "How much later those had come that passed", settings, passed, heads
        ),
    }


def _plots(findings: Findings) -> Sequence[Plot]:
    points = [(one, float(one.rstrip("%"))) for one in findings.settings]
    x = "load, % of what the fleet can do"

    def panels(what: str, key: str) -> list[Panel]:
        return [Panel(f"{name}: {what}", f"{key}_{one}", points, x, far=True)
                for one, name in _CLASSES.items()]  # fmt: skip

    title = "Time to first token of each class, the 99th percentile"
    return [
        lines(findings, "priorities-ttft", title, panels("TTFT p99, s", "ttft_99")),
        lines(
            findings, "priorities-wait", "Longest wait of each class",
            panels("longest wait, s", "wait_100"),
        ),
    ]  # fmt: skip


STUDY: Final = Study(
    name="priorities",
    title="Who goes first",
    traces=(
        Trace(
            "conversation",
            "Azure's conversation trace of 2023",
            "poisson:rate=20,seconds=60,prompt=lognormal:900:0.8,output=lognormal:150:0.8",
        ),
    ),
    measures=(
        *(
            ttft(percent, priority=one, head=f"{name}, {'median' if percent == 50 else 'p99'}")
            for one, name in _CLASSES.items()
            for percent in (50, 99)
        ),
        *(wait(100, priority=one, head=name) for one, name in _CLASSES.items()),
        *(make(one) for one in (URGENT, NORMAL) for make in (_passed, _bound)),
    ),
    cases=_cases,
    tables=_tables,
    plots=_plots,
)
