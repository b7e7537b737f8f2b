"""Where requests are placed: most free blocks against four other rules."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from experiments.loads.changes import scaled
from experiments.loads.load import Load
from experiments.policies import spec_of
from experiments.report.drawing import Plot
from experiments.report.table import Table
from experiments.report.targets import Targets
from experiments.simulator.scenario import Scenario
from experiments.studies.capacity import capacity
from experiments.studies.case import Case
from experiments.studies.findings import Findings
from experiments.studies.lines import Panel, lines
from experiments.studies.measure import cached, counted, missed, tpot, ttft
from experiments.studies.pieces import piece
from experiments.studies.reference import config, step_time
from experiments.studies.study import Given, Study, Trace
from experiments.studies.tables import ratios, table

TARGETS: Final = Targets(ttft_s=1.0, tpot_s=0.1)
MOONCAKE_SCALE: Final = 0.25
LONG: Final = 12_000
"""Tokens of the long prompts that are put among short ones, one in `_ONE_IN`."""

_ONE_IN: Final = 25
_RULES: Final[Mapping[str, str]] = {
    "most free blocks": "most_free_blocks",
    "least requests": "least_requests",
    "power of two": "power_of_two",
    "round robin": "round_robin",
}
_BY_PREFIX: Final[Mapping[str, str]] = {"prefix affinity": "prefix_affinity", **_RULES}
_LATE: Final = 20
_PERCENTS: Final = (50, 70, 85, 95)
_BY_PREFIX_PERCENTS: Final = (60, 90, 120)


@dataclass(frozen=True, slots=True)
class _Situation:
    """A load and a deployment in which the rules are compared.

    Attributes:
        name: in front of the percentage in the setting's name.
        load: before it is brought to a rate.
        percents: of what the fleet can do without a prefix cache.
        rules: names of the rules and what the setting ``placement`` is for them.
        server: settings of the server.
        late: times, how much later news is than by default.
    """

    name: str
    load: Load
    percents: Sequence[int]
    rules: Mapping[str, str]
    server: Mapping[str, Any]
    late: int = 1


def _cases(given: Given) -> Iterator[Case]:
    replicas, seconds, warm_s = (2, 3.0, 0.0) if given.quick else (8, 120.0, 15.0)
    time = step_time()
    for situation in _situations(given.loads):
        fleet = config(replicas, **situation.server)
        looked_at = 100 if given.quick else 600
        most = capacity(fleet, situation.load, time, looked_at) * replicas
        usual = Scenario("", fleet)
        for percent in situation.percents[:1] if given.quick else situation.percents:
            for seed in range(given.seeds):
                rate = most * percent / 100
                load = piece(situation.load, seed, given.seeds, rate, seconds)
                for variant, rule in situation.rules.items():
                    placed = config(replicas, placement=spec_of(rule), **situation.server)
                    scenario = replace(
                        usual,
                        name=variant,
                        config=placed,
                        seed=seed,
                        network_s=usual.network_s * situation.late,
                    )
                    setting = f"{situation.name}, {percent}%"
                    yield Case(setting, variant, scenario, load, time, warm_s)


def _situations(loads: Mapping[str, Load]) -> Sequence[_Situation]:
    conversation = loads["conversation"]
    interval_s = config(1).report_interval_s * _LATE
    return (
        _Situation("conversation", conversation, _PERCENTS, _RULES, {}),
        _Situation(
            "late news", conversation, (85,), _RULES, {"report_interval_s": interval_s}, _LATE
        ),
        _Situation("long prompts", _with_long(conversation), (85,), _RULES, {}),
        _Situation(
            "shared prefixes",
            scaled(loads["prefixes"], 1.0, MOONCAKE_SCALE, MOONCAKE_SCALE),
            _BY_PREFIX_PERCENTS,
            _BY_PREFIX,
            {"prefix_cache": True},
        ),
    )


def _with_long(load: Load) -> Load:
    """Return the load with a long prompt in place of every `_ONE_IN`-th."""
    arrivals = [
        replace(one, prompt_tokens=LONG) if i % _ONE_IN == 0 else one
        for i, one in enumerate(load.arrivals)
    ]
    return replace(load, arrivals=arrivals)


_KEYS: Final = ("ttft_50", "ttft_99", "tpot_99", "missed", "preemptions")


def _tables(findings: Findings) -> Mapping[str, Table]:
    def part(title: str, *names: str, keys: Sequence[str] = _KEYS) -> Table:
        settings = [one for one in findings.settings if one.split(",")[0] in names]
        return table(findings, title, settings, keys, ("load", "rule"))

    return {
        "conversation": part("Prompts that share nothing", "conversation"),
        "ratios": ratios(
            findings,
            "Each rule against most free blocks",
            findings.settings,
            ("ttft_50", "ttft_99", "tpot_99"),
            "most free blocks",
            ("load", "rule"),
        ),
        "hard": part("Late news, and long prompts among short ones", "late news", "long prompts"),
        "prefixes": part(
            "Prompts that share beginnings", "shared prefixes", keys=(*_KEYS, "cached")
        ),
    }


def _plots(findings: Findings) -> Sequence[Plot]:
    def panel(name: str, title: str, key: str, *, far: bool) -> Panel:
        points = [
            (one, float(one.split(", ")[1].rstrip("%")))
            for one in findings.settings
            if one.split(",")[0] == name
        ]
        return Panel(title, key, points, "load, % of what the fleet can do", far)

    return [
        lines(
            findings,
            "placement-conversation",
            "Conversation trace: each rule over the load",
            [
                panel("conversation", "TTFT p99, s", "ttft_99", far=True),
                panel("conversation", "Requests that missed a target, %", "missed", far=False),
            ],
        ),
        lines(
            findings,
            "placement-prefixes",
            "Shared prefixes: each rule over the load",
            [
                panel("shared prefixes", "TTFT p99, s", "ttft_99", far=True),
                panel("shared prefixes", "Prompt tokens cached, %", "cached", far=False),
            ],
        ),
    ]


STUDY: Final = Study(
    name="placement",
    title="Where requests are placed",
    traces=(
        Trace(
            "conversation",
            "Azure's conversation trace of 2023",
            "poisson:rate=20,seconds=60,prompt=lognormal:900:0.8,output=lognormal:150:0.8",
        ),
        Trace(
            "prefixes",
            "Mooncake's conversation trace",
            "conversations:rate=2,turns=4,think=5,prompt=2000,output=400,system=2000,seconds=120",
        ),
    ),
    measures=(
        ttft(50),
        ttft(99),
        tpot(99),
        missed(TARGETS),
        counted("preemptions", "preemptions"),
        cached(),
    ),
    cases=_cases,
    tables=_tables,
    plots=_plots,
)
