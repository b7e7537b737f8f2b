"""One router for all: how many requests and replicas it bears, and what more of them would do."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from experiments.loads.changes import scaled
from experiments.loads.load import Load
from experiments.loads.rules import with_tenants
from experiments.report.drawing import Plot
from experiments.report.table import Table
from experiments.simulator.scenario import Scenario
from experiments.studies.capacity import capacity
from experiments.studies.case import Case
from experiments.studies.findings import Findings
from experiments.studies.lines import Panel, lines
from experiments.studies.measure import Measure, ttft, wait
from experiments.studies.pieces import piece
from experiments.studies.reference import config, step_time
from experiments.studies.study import Given, Study, Trace
from experiments.studies.tables import table

MESSAGE_S: Final = 0.0004
"""CPU time of the router's process for one message, be it a request, the ends of several, or a
report. ``tidegate bench --only calls`` found 0.36 ms for a request with its share of a message of
ends, 32 at once, and 0.38 ms for a report."""

TENANTS: Final = 100
_ANSWER_SCALE: Final = 0.1
_LOADS: Final[Mapping[int, Sequence[int]]] = {
    10: (25, 50),
    100: (200, 400, 600, 800),
    1000: (100, 200, 400, 600),
}
"""Requests/s, by the number of replicas."""

_NEWS: Final[Mapping[str, Mapping[str, Any]]] = {
    "as by default": {},
    "rarer news": {"heartbeat_s": 5.0, "report_interval_s": 1.0},
}
_SHARDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "one router": {},
    "4, by chance": {"routers": 4},
    "8, by chance": {"routers": 8},
    "4, by tenant": {"routers": 4, "shard_by": "tenant"},
    "8, by tenant": {"routers": 8, "shard_by": "tenant"},
}
_FLEET: Final = 16
_PERCENTS: Final = (70, 85)


def _cases(given: Given) -> Iterator[Case]:
    yield from _busy(given)
    yield from _relieved(given)
    yield from _shared(given)


def _busy(given: Given) -> Iterator[Case]:
    """One router, more and more requests, replicas that are never short of room."""
    time, load = step_time(), _short(given.loads["conversation"])
    for replicas, rates in ({4: (20,)} if given.quick else _LOADS).items():
        for rate in rates:
            for seed in range(given.seeds):
                part = _stretch(load, given, seed, rate)
                for variant, settings in _NEWS.items():
                    scenario = Scenario(
                        variant, config(replicas, **settings), seed=seed, router_s=MESSAGE_S
                    )
                    yield Case(_named(replicas, rate), variant, scenario, part, time, _warm(given))


def _relieved(given: Given) -> Iterator[Case]:
    """What is too much for one router, for several."""
    time, load = step_time(), _short(given.loads["conversation"])
    replicas, rate = (4, 20) if given.quick else (1000, 1000)
    for seed in range(given.seeds):
        part = _stretch(load, given, seed, rate)
        for routers in (1, 4) if given.quick else (1, 4, 16):
            scenario = Scenario(
                "", config(replicas, **_NEWS["rarer news"]), seed=seed,
                router_s=MESSAGE_S, routers=routers,
            )  # fmt: skip
            variant = "one router" if routers == 1 else f"{routers} routers"
            setting = f"shards, {_named(replicas, rate)}"
            yield Case(setting, variant, scenario, part, time, _warm(given))


def _shared(given: Given) -> Iterator[Case]:
    """Routers that take no time at all: what is left is how evenly they share the load."""
    time, load = step_time(), given.loads["conversation"]
    replicas, seconds = (8, 1.0) if given.quick else (_FLEET, 45.0)
    most = replicas * capacity(config(1), load, time, 100 if given.quick else 600)
    for percent in _PERCENTS[-1:] if given.quick else _PERCENTS:
        for seed in range(given.seeds):
            part = piece(load, seed, given.seeds, most * percent / 100, seconds)
            part = with_tenants(part, _tenants(), Random(f"{seed} tenants"))
            for variant, fields in _SHARDS.items():
                scenario = replace(Scenario(variant, config(replicas), seed=seed), **fields)
                yield Case(f"evenness, {percent}%", variant, scenario, part, time, _warm(given))


def _tenants() -> str:
    """Return a rule: the second tenant sends half as much as the first, the third a third."""
    return ",".join(f"t{i}:{1 / i:.6f}" for i in range(1, TENANTS + 1))


def _short(load: Load) -> Load:
    """Return the load with short answers: fewer replicas are enough to keep the router busy."""
    return scaled(load, output=_ANSWER_SCALE)


def _stretch(load: Load, given: Given, seed: int, rate: float) -> Load:
    return piece(load, seed, given.seeds, rate, 1.0 if given.quick else 10.0)


def _warm(given: Given) -> float:
    return 0.0 if given.quick else 2.0


def _named(replicas: int, rate: int) -> str:
    return f"{replicas:,} replicas, {rate:,}/s"


def _per_second(key: str, head: str) -> Measure:
    return Measure(key, head, "", lambda run: run.counts[key] / run.seconds)


_MEASURES: Final = (
    wait(50, head="placed after, median"),
    wait(99, head="placed after, p99"),
    ttft(50),
    ttft(99),
    _per_second("reports", "reports/s"),
    _per_second("router_messages", "messages/s"),
)


def _tables(findings: Findings) -> Mapping[str, Table]:
    def part(title: str, settings: Sequence[str], *keys: str, heads: tuple[str, str]) -> Table:
        return table(findings, title, settings, keys, heads)

    busy = [one for one in findings.settings if "replicas" in one and "shards" not in one]
    shards = [one for one in findings.settings if one.startswith("shards")]
    even = [one for one in findings.settings if one.startswith("evenness")]
    return {
        "busy": part(
            "One router", busy, "wait_50", "wait_99", "ttft_99", "reports", "router_messages",
            heads=("fleet", "news"),
        ),
        "shards": part(
            "More routers", shards, "wait_50", "wait_99", "ttft_99", "router_messages",
            heads=("fleet", "routers"),
        ),
        "even": part(
            "How evenly several routers share a load", even, "ttft_50", "ttft_99", "wait_99",
            heads=("load", "routers"),
        ),
    }  # fmt: skip


def _plots(findings: Findings) -> Sequence[Plot]:
    def points(begin: str) -> list[tuple[str, float]]:
        return [
            (one, float(one.split(", ")[1].rstrip("/s").replace(",", "")))
            for one in findings.settings
            if one.startswith(begin)
        ]

    panels = [
        Panel(f"{fleet}: placed after, p99, s", "wait_99", points(fleet), "requests/s", far=True)
        for fleet in dict.fromkeys(
            one.split(", ")[0]
            for one in findings.settings
            if not one.startswith(("shards", "evenness"))
        )
    ]
    return [lines(findings, "router-busy", "How long the router takes to place", panels)]


STUDY: Final = Study(
    name="router",
    title="One router for all",
    traces=(
        Trace(
            "conversation",
            "Azure's conversation trace of 2023",
            "poisson:rate=20,seconds=60,prompt=lognormal:900:0.8,output=lognormal:150:0.8",
        ),
    ),
    measures=_MEASURES,
    cases=_cases,
    tables=_tables,
    plots=_plots,
)
