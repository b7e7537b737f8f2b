"""What holds for any run: all are answered, nothing is lost, and it is the same every time."""

import pickle
from itertools import pairwise
from typing import Any

import pytest

from experiments.loads.load import Arrival
from experiments.simulator.outcome import Run
from experiments.simulator.scenario import Failure
from tests.experiments.simulator.runs import poisson, run

FLEETS: list[dict[str, Any]] = [
    {},
    {"prefix_cache": True},
    {"overlap": True},
    {"num_blocks": 40, "max_waiting": 2, "lookahead": 8},
    {"num_blocks": 40, "swap_gib": 1e-5, "kv_bytes_per_token": 64},
    {"num_blocks": 40, "admission_preemption": 1, "max_num_seqs": 4},
    {"target_tpot_ms": 20.0},
    {"max_num_batched_tokens": 5, "prefill_chunk": 5},
    {"router_s": 0.002, "routers": 2, "replicas": 3},
    {"failures": (Failure(1.0, 0), Failure(3.0, 1, "silence")), "start_s": 2.0},
    {"mtbf_s": 4.0, "start_s": 1.0},
    {"autoscaling": "blocks", "max_replicas": 4, "start_s": 1.0},
    {"placement": "prefix_affinity", "prefix_cache": True},
    {"scheduling_policy": "fcfs", "max_queued": 3, "retries": 2},
    {"first_token_s": 0.1, "max_queued": 9, "retries": 3, "router_s": 0.02, "gateways": 3},
]


def check(run: Run, arrivals: list[Arrival]) -> None:
    """What holds for any run."""
    assert [one.index for one in run.outcomes] == list(range(len(arrivals)))
    for outcome, arrival in zip(run.outcomes, arrivals, strict=True):
        if outcome.status != "ok":
            assert outcome.reason
            continue
        assert outcome.output_tokens == arrival.output_tokens
        assert outcome.attempts >= 1
        times = (arrival.at, outcome.placed_at, outcome.first_token_at, outcome.last_token_at)
        assert None not in times
        assert all(a <= b for a, b in pairwise(times))
        whole = outcome.last_token_at - outcome.first_token_at
        assert outcome.longest_gap_s <= whole + 1e-9
        if outcome.output_tokens > 1:
            assert outcome.longest_gap_s >= whole / (outcome.output_tokens - 1) - 1e-9
    for sample in run.samples:
        assert 0 <= sample.free_blocks <= sample.total_blocks
    assert 0 <= run.busy_s <= run.replica_s


@pytest.mark.parametrize("settings", FLEETS, ids=str)
def test_every_request_comes_to_something_and_twice_to_the_same(settings: dict[str, Any]) -> None:
    requests = poisson(6, 8, priority=1)
    first, second = (run(requests, **settings) for _ in range(2))
    check(first, list(requests.arrivals))
    assert pickle.dumps(first) == pickle.dumps(second)
    if "max_queued" not in settings:
        assert {one.status for one in first.outcomes} == {"ok"}


def test_another_seed_is_another_run() -> None:
    requests = poisson(6, 8)
    first, second = (run(requests, mtbf_s=3.0, start_s=1.0, seed=seed) for seed in (1, 2))
    assert pickle.dumps(first.outcomes) != pickle.dumps(second.outcomes)
