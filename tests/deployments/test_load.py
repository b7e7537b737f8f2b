"""What /load says is what the router knows."""

import json
import time
from dataclasses import replace
from random import Random

from deployments.load import seen_by, snapshot
from deployments.messages import Vitals
from deployments.metrics import Counts
from router.core import RouterConfig, RouterCore
from router.gauges import PriorityGauges
from router.report import Report
from router.tenants import Terms
from router.ticket import Ticket

REPORT = Report(
    replica="r1",
    seq=1,
    total_blocks=10,
    free_blocks=4,
    running=2,
    max_seqs=8,
    waiting=1,
    waiting_blocks=1,
    max_waiting=8,
    held=(),
)


def test_it_shows_the_queue_and_the_blocks_of_each_replica() -> None:
    now = 100.0
    core = RouterCore(RouterConfig(max_queued=9, lookahead=0), lambda: now, Random(0))
    core.report(REPORT)
    core.report(replace(REPORT, replica="r2", leaving=True))
    now += 60.0  # it has settled
    core.report(replace(REPORT, seq=2))
    core.report(replace(REPORT, replica="r2", seq=2, leaving=True))
    for name, priority in (("a", 5), ("b", 0), ("c", 5)):
        core.acquire(Ticket(name, priority, 0, 8, 8))
    now += 1.5
    load = snapshot("m", core.gauges(), {"r1": Vitals(True, 3, 70)}, {"r1": 6}, Counts())
    assert json.loads(json.dumps(load)) == load
    queue = load["queue"]
    assert (queue["waiting"], queue["limit"], queue["oldest_s"], queue["blocks"]) == (3, 9, 1.5, 24)
    first, second = load["replicas"]
    assert first == {
        "replica": "r1",
        "state": "serving",
        "total_blocks": 10,
        "free_blocks": 4,
        "running": 2,
        "max_running": 8,
        "waiting": 1,
        "report_age_s": 1.5,
        "placed": 6,
        "preemptions": 3,
        "recomputed_tokens": 70,
    }
    assert (second["state"], second["placed"], second["preemptions"]) == ("leaving", 0, 0)


def test_it_shows_who_waits_by_priority() -> None:
    gauges = RouterCore(RouterConfig(), time.monotonic, Random(0)).gauges()
    waiting = (PriorityGauges(5, 2, 0.25), PriorityGauges(-1, 1, 9.0))
    load = snapshot("m", replace(gauges, by_priority=waiting), {}, {}, Counts())
    assert load["queue"]["by_priority"] == [
        {"priority": 5, "waiting": 2, "oldest_s": 0.25},
        {"priority": -1, "waiting": 1, "oldest_s": 9.0},
    ]


def test_a_tenant_sees_no_other() -> None:
    config = RouterConfig(tenants=(Terms("search"), Terms("batch")))
    gauges = RouterCore(config, time.monotonic, Random(0)).gauges()
    load = snapshot("m", gauges, {}, {}, Counts())
    assert [one["tenant"] for one in load["tenants"]] == ["search", "batch"]
    own = seen_by("batch", load)
    assert [one["tenant"] for one in own["tenants"]] == ["batch"]
    assert {**own, "tenants": load["tenants"]} == load == seen_by("", load)
    assert seen_by("gone", load)["tenants"] == []


def test_totals_are_those_of_all_gateways_and_labels() -> None:
    gauges = RouterCore(RouterConfig(), time.monotonic, Random(0)).gauges()
    counts = Counts()
    counts.add("request_success_total", 2, (("finished_reason", "stop"),))
    counts.add("request_success_total", 1, (("finished_reason", "abort"),))
    counts.add("request_resumed_total", 4, (("reason", "lost"),))
    counts.observe("time_to_first_token_seconds", 0.02)
    counts.observe("inter_token_latency_seconds", 0.01, times=6)
    counts.preempted(Vitals(True, 1, 0), Vitals(True, 3, 0))
    load = snapshot("m", gauges, {}, {}, counts)
    totals = load["totals"]
    assert (totals["ended"], totals["resumed"], totals["errors"]) == (3, 4, 0)
    # One first token and six more; the counter of whole requests has none yet.
    assert (totals["generated_tokens"], totals["preemptions"]) == (7, 2)
    bounds, buckets = load["ttft"]["bounds"], load["ttft"]["counts"]
    assert len(buckets) == len(bounds) + 1
    assert buckets[bounds.index(0.05)] == sum(buckets) == 1
