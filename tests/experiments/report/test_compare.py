"""Comparison: ratios are simulated by measured, and say nothing where there is nothing."""

import pytest

from experiments.report.compare import compare
from tests.experiments.report.runs import answered, run

SIMULATED = run("simulated", outcomes=[answered(0, 0.0, 1.0, 0.02), answered(1, 1.0, 1.0, 0.02)])
MEASURED = run("measured", kind="measured", outcomes=[answered(0, 0.0, 0.5, 0.04)],
               replica_s=0.0, counts={"steps": 617.0, "retries": 2})  # fmt: skip


def test_ratios() -> None:
    found = compare(SIMULATED, MEASURED)
    assert found["requests"].ratio == 2.0
    assert found["TTFT p50, s"].ratio == 2.0
    assert found["TPOT p90, ms"].ratio == pytest.approx(0.5)
    assert found["TPOT p90, ms"].measured == pytest.approx(40.0)
    assert found["output tokens"].ratio == 2.0
    assert found["steps"].ratio == 2.0


def test_what_only_one_has_counted_is_left_out() -> None:
    found = compare(SIMULATED, MEASURED)
    for name in ("preemptions", "retries", "replica-hours"):
        with pytest.raises(KeyError):
            found[name]


def test_nothing_by_nothing_is_no_ratio() -> None:
    found = compare(run(outcomes=[]), MEASURED)
    assert found["TTFT p50, s"].ratio is None
    assert found["refused"].ratio is None
    assert "| refused" in found.table().as_markdown()
