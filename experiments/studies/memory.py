"""Memory: what to do with requests when the blocks of a replica do not suffice for all of them."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final

from experiments.loads.changes import scaled
from experiments.loads.rules import with_priorities
from experiments.report.drawing import Plot
from experiments.report.table import Table
from experiments.simulator.scenario import Scenario
from experiments.studies.capacity import capacity
from experiments.studies.case import Case
from experiments.studies.findings import Findings
from experiments.studies.lines import Panel, lines
from experiments.studies.measure import counted, tpot, ttft
from experiments.studies.pieces import piece
from experiments.studies.reference import KV_BYTES, config, step_time
from experiments.studies.study import Given, Study, Trace
from experiments.studies.tables import table

URGENT: Final = 10
"""The priority of one request in ten; all others have 0."""

BLOCKS: Final = 1_500
"""Of a replica: room for about 20 requests of the trace, so that memory is what is short."""

LONGER: Final = 3.0
"""Times, how much longer answers are than in the trace: what grows is what has to make way."""

SWAP_GIB: Final = 16.0
LEVELS: Final = 5
_PERCENTS: Final = (40, 60, 80)
_WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "recompute": {},
    "swap": {"swap_gib": SWAP_GIB},
    "admission preemption": {"admission_preemption": LEVELS},
    "both": {"swap_gib": SWAP_GIB, "admission_preemption": LEVELS},
}


def _cases(given: Given) -> Iterator[Case]:
    replicas, seconds, warm_s = (1, 150.0, 0.0) if given.quick else (4, 240.0, 30.0)
    time = step_time()
    longer = scaled(given.loads["conversation"], output=LONGER)
    fleet = config(replicas, num_blocks=BLOCKS)
    most = capacity(fleet, longer, time, 100 if given.quick else 600) * replicas
    for percent in _PERCENTS[-1:] if given.quick else _PERCENTS:
        for seed in range(given.seeds):
            some = piece(longer, seed, given.seeds, most * percent / 100, seconds)
            load = with_priorities(some, f"{URGENT}:0.1,0:0.9", Random(seed))
            for variant, settings in _WAYS.items():
                scenario = Scenario(
                    variant,
                    config(replicas, num_blocks=BLOCKS, **settings),
                    seed=seed,
                    kv_bytes_per_token=KV_BYTES,
                )
                yield Case(f"{percent}%", variant, scenario, load, time, warm_s)


_TIMES: Final = ("ttft_50_10", "ttft_99_10", "ttft_50_0", "ttft_99_0", "tpot_99")
_COUNTS: Final = (
    "preemptions",
    "admission_preemptions",
    "recomputed_tokens",
    "restored_tokens",
)


def _tables(findings: Findings) -> Mapping[str, Table]:
    heads = ("load", "way")
    return {
        "times": table(findings, "Times of requests", findings.settings, _TIMES, heads),
        "counts": table(findings, "What was done", findings.settings, _COUNTS, heads),
    }


def _plots(findings: Findings) -> Sequence[Plot]:
    points = [(one, float(one.rstrip("%"))) for one in findings.settings]
    x = "load, % of what the fleet can do"
    panels = [
        Panel("Urgent: TTFT p99, s", "ttft_99_10", points, x, far=True),
        Panel("Others: TTFT p99, s", "ttft_99_0", points, x, far=True),
        Panel("All: TPOT p99, ms", "tpot_99", points, x),
    ]
    return [lines(findings, "memory-times", "Short of memory: each way over the load", panels)]


STUDY: Final = Study(
    name="memory",
    title="When memory is short",
    traces=(
        Trace(
            "conversation",
            "Azure's conversation trace of 2023",
            "poisson:rate=20,seconds=60,prompt=lognormal:900:0.8,output=lognormal:150:0.8",
        ),
    ),
    measures=(
        ttft(50, priority=URGENT, head="urgent: TTFT median"),
        ttft(99, priority=URGENT, head="urgent: TTFT p99"),
        ttft(50, priority=0, head="others: TTFT median"),
        ttft(99, priority=0, head="others: TTFT p99"),
        tpot(99),
        counted("preemptions", "preemptions"),
        counted("admission_preemptions", "for a newcomer"),
        counted("recomputed_tokens", "tokens computed again"),
        counted("restored_tokens", "tokens brought back"),
    ),
    cases=_cases,
    tables=_tables,
    plots=_plots,
)
