"""Targets: what counts as missed."""

import pytest

from experiments.report.targets import Targets
from experiments.simulator.outcome import Outcome
from tests.experiments.report.runs import answered

TARGETS = Targets(ttft_s=1.0, tpot_s=0.05)


@pytest.mark.parametrize(("ttft", "tpot", "met"), [
    (1.0, 0.03, True), (1.01, 0.03, False), (0.5, 0.06, False),
])  # fmt: skip
def test_both_targets_must_be_met(ttft: float, tpot: float, met: bool) -> None:
    assert TARGETS.met(answered(0, 0.0, ttft, tpot)) is met


def test_without_targets_an_answer_will_do() -> None:
    anything = Targets(None, None)
    assert anything.met(answered(0, 0.0, 99.0, 99.0))
    assert not anything.met(Outcome(0, 0.0, 0, "", 1, status="refused"))
    assert str(anything) == "an answer, however late"


def test_an_answer_that_broke_off_missed_them_however_fast_it_was() -> None:
    assert not TARGETS.met(Outcome(0, 0.0, 0, "", 1, 1, first_token_at=0.1, last_token_at=0.1))


def test_one_token_has_no_time_per_token_to_miss() -> None:
    one = Outcome(0, 0.0, 0, "", 1, 1, "ok", first_token_at=0.5, last_token_at=0.5)
    assert TARGETS.met(one)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan")])
def test_a_target_is_above_nothing(wrong: float) -> None:
    with pytest.raises(ValueError, match=f"tpot_s must be above 0, not {wrong}"):
        Targets(tpot_s=wrong)
