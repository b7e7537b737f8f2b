"""Plots of many runs: what they have no room for is left out as a whole, and said."""

from itertools import combinations
from random import Random

import pytest

from experiments.report import comparisons
from experiments.report.scales import Scales
from experiments.report.summary import summarise
from experiments.report.targets import Targets
from tests.experiments.report.drawn import text_boxes
from tests.experiments.report.runs import answered, run

TARGETS = Targets(1.0, None)


def test_runs_that_are_not_in_the_plot_are_told() -> None:
    """Guards against: a plot that ends within a run, as if there were no more of them."""
    outcomes = [answered(i, 0.0, 1.0, 0.1, priority=i) for i in range(3)]
    runs = [run(f"run {i}.", outcomes=outcomes) for i in range(1, 21)]
    summaries, scales = [summarise(one, TARGETS) for one in runs], Scales.of(runs, TARGETS)
    whole, part = (comparisons.ladder(summaries[:n], scales, TARGETS) for n in (15, 20))
    assert whole.title == "Time to first token by priority"
    assert part.title == "Time to first token by priority, of the first 15 of 20 runs"
    assert part.height == whole.height
    assert "run 15.: median" in part.alt
    assert "run 16." not in part.alt


@pytest.mark.parametrize("letter", ["i", "W"])
def test_no_label_lies_on_another_where_many_runs_lie_together(letter: str) -> None:
    """Guards against: letters that are taken to be of one width, so that wide names overlap."""
    chance = Random(letter)
    summaries = [
        summarise(run(f"{letter * 12} {i}", replica_s=chance.gauss(36_000, 4_000)), TARGETS)
        for i in range(12)
    ]
    boxes = text_boxes(comparisons.cost(summaries, TARGETS))
    assert len(boxes) > 6
    assert not [(one, other) for one, other in combinations(boxes, 2) if one.overlaps(other)]
