"""Autoscaling: how many replica-hours a policy needs, and how many requests it lets wait."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deployments.config import ServeConfig
from experiments.report.drawing import Plot
from experiments.report.table import Table
from experiments.report.targets import Targets
from experiments.simulator.outcome import Run
from experiments.simulator.scenario import Scenario
from experiments.simulator.step_models import load_step_time
from experiments.studies.case import Case
from experiments.studies.findings import Findings
from experiments.studies.measure import Measure, counted, missed, replica_hours, ttft
from experiments.studies.pieces import piece
from experiments.studies.reference import config
from experiments.studies.study import Given, Study, Trace
from experiments.studies.tables import table
from experiments.studies.tradeoff import Family, tradeoff

STEP_TIME: Final = "llama-70b@4xl40s"
"""One replica answers about three requests of the trace in a second, as many as come on average."""

BLOCKS: Final = 7_000
"""Of 16 tokens, 5 MiB each: 35 GiB, beside 131 GiB of weights on four times 48 GB."""

TARGETS: Final = Targets(ttft_s=5.0, tpot_s=None)
MOST: Final = 24
RATE: Final = 2.5
"""Requests/s, about the trace's own."""

STARTS_S: Final = (30, 180)
_FIXED: Final = "fixed"
_FLOOR: Final = "ttft 1 s, at least"


@dataclass(frozen=True, slots=True)
class _Policy:
    """One way to have replicas.

    Attributes:
        family: the kind of policy; those of one kind differ in how much they want.
        name: of the variant.
        settings: of the server.
    """

    family: str
    name: str
    settings: Mapping[str, Any]


def _fixed(replicas: int) -> _Policy:
    return _Policy(_FIXED, f"{replicas} replicas", {"replicas": replicas})


def _scaled(family: str, setting: str, value: float, unit: str) -> _Policy:
    return _Policy(family, f"{family} {value:g}{unit}", _within(1, family, setting, value))


def _from(fewest: int) -> _Policy:
    """The policy that costs most, with so many replicas that are always there."""
    settings = _within(fewest, "ttft", "target_ttft_s", 1.0)
    return _Policy(_FLOOR, f"{_FLOOR} {fewest}", settings)


def _within(fewest: int, policy: str, setting: str, value: float) -> Mapping[str, Any]:
    return {
        "autoscaling": policy,
        "min_replicas": fewest,
        "max_replicas": MOST,
        setting: value,
    }


POLICIES: Final = (
    *(_fixed(replicas) for replicas in (2, 4, 8, 16)),
    *(_scaled("blocks", "target_utilization", share, "") for share in (0.8, 0.4, 0.2)),
    *(_scaled("wait", "target_wait_s", limit, " s") for limit in (4.0, 1.0)),
    *(_scaled("ttft", "target_ttft_s", limit, " s") for limit in (4.0, 1.0)),
    *(_from(fewest) for fewest in (4, 8, 12)),
)


def _cases(given: Given) -> Iterator[Case]:
    seconds, warm_s = (60.0, 0.0) if given.quick else (1_200.0, 120.0)
    starts_s = STARTS_S[:1] if given.quick else STARTS_S
    time = load_step_time(STEP_TIME)
    for start_s in starts_s:
        for seed in range(given.seeds):
            load = piece(given.loads["code"], seed, given.seeds, RATE, seconds)
            for policy in POLICIES:
                scenario = Scenario(policy.name, _config(policy), seed=seed, start_s=start_s)
                yield Case(_setting(start_s), policy.name, scenario, load, time, warm_s)


def _config(policy: _Policy) -> ServeConfig:
    return config(**{"replicas": 1, "num_blocks": BLOCKS, **policy.settings})


def _setting(start_s: int) -> str:
    return f"up in {start_s} s"


def _most(run: Run) -> float | None:
    return max((sample.serving for sample in run.samples), default=None)


_KEYS: Final = ("replica_hours", "missed", "ttft_50", "ttft_99", "most", "scalings")


def _tables(findings: Findings) -> Mapping[str, Table]:
    title = "Replica-hours against missed targets"
    return {"policies": table(findings, title, findings.settings, _KEYS, ("a replica is", "way"))}


def _plots(findings: Findings) -> Sequence[Plot]:
    families = [
        Family(family, [one.name for one in POLICIES if one.family == family])
        for family in dict.fromkeys(one.family for one in POLICIES)
    ]
    return [
        tradeoff(
            findings,
            "autoscaling-cost",
            "What each policy costs, and how many requests miss the target",
            families,
            findings.settings,
            ("replica_hours", "missed"),
        )
    ]


STUDY: Final = Study(
    name="autoscaling",
    title="How many replicas, and who says so",
    traces=(
        Trace(
            "code",
            "Azure's code trace of 2023",
            "bursts:rate=1,size=20,every=15,seconds=60,prompt=lognormal:1500:0.8,output=28",
        ),
    ),
    measures=(
        replica_hours(),
        missed(TARGETS),
        ttft(50),
        ttft(99),
        Measure("most", "most replicas", "", _most),
        counted("scalings", "changes"),
    ),
    cases=_cases,
    tables=_tables,
    plots=_plots,
)
