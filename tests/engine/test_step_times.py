"""engine.step_times: what it learns of steps, on machines whose costs are known."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.step_times import CREDIBLE, Line, StepTimes

points = st.lists(st.tuples(st.integers(1, 4000), st.floats(1e-6, 10.0)), min_size=1, max_size=30)


@settings(max_examples=100, deadline=None)
@given(points)
def test_a_line_rises_whatever_it_is_told(given: list[tuple[int, float]]) -> None:
    """Fault: one odd step makes prompts free or worth a profit: chunks without limit."""
    line = Line(0.25)
    for x, y in given:
        line.observe(x, y)
        assert 0 < line.slope < math.inf
        assert 0 <= line.at(0) <= line.at(x) < math.inf
        assert math.isclose(line.at(line.reaches(0.5)), 0.5, abs_tol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 2), st.floats(1e-5, 0.01), st.integers(1, 50), st.integers(60, 2000))
def test_a_line_through_points_of_one_line_is_that_line(
    share: float, slope: float, near: int, far: int
) -> None:
    """Fault: what is fixed is counted with every token, so few tokens look dear."""
    start = share * slope * (near + far) / 2
    line = Line(0.1)
    for i in range(60):
        x = far if i % 2 else near
        line.observe(x, start + slope * x)
    for x in (near, far):
        assert line.at(x) == pytest.approx(start + slope * x, rel=0.05)


def test_points_in_one_place_keep_the_slope_and_move_the_line() -> None:
    """Fault: nothing can be learned of the slope, and noise is taken for it."""
    line = Line(0.25)
    line.observe(100, 1.0)
    for i in range(200):
        line.observe(100 + i % 2, 2.0 + 0.1 * (i % 3))
    assert line.at(100) == pytest.approx(2.1, rel=0.05)
    assert 0.004 <= line.slope <= 0.021


def test_prompts_cost_what_a_step_takes_beyond_its_decodes() -> None:
    """Fault: a step's decodes are charged to its prompts."""
    times = StepTimes()
    for decodes in range(1, 40):
        times.observe(0, decodes, 0.010 + 0.001 * decodes)
    for _ in range(40):
        times.observe(100, 20, 0.030 + 0.050)
    assert times.decodes.at(30) == pytest.approx(0.040, rel=0.1)
    assert times.prompts.at(100) == pytest.approx(0.050, rel=0.1)
    assert times.prompts.at(200) == pytest.approx(0.100, rel=0.1)


def test_one_hiccup_is_no_news_and_many_are() -> None:
    """Fault: a pause of the machine stops prompts for minutes; or a slower machine is not seen."""
    times = StepTimes()
    for _ in range(20):
        times.observe(100, 0, 0.1)
    times.observe(100, 0, 100.0)
    assert times.prompts.at(100) <= 0.1 * (1 + CREDIBLE * 0.25)
    for _ in range(30):
        times.observe(100, 0, 1.0)
    assert times.prompts.at(100) == pytest.approx(1.0, rel=0.05)


def test_the_spread_is_how_far_predictions_are_off() -> None:
    steady, shaky = StepTimes(), StepTimes()
    for i in range(100):
        steady.observe(0, 4, 0.1)
        shaky.observe(0, 4, 0.12 if i % 2 else 0.08)
    assert steady.spread == pytest.approx(0.0, abs=1e-3)
    assert shaky.spread == pytest.approx(0.2, abs=0.05)


def test_the_reach_is_known_at_once_and_forgotten_slowly() -> None:
    times = StepTimes()
    times.observe(10, 0, 0.01)
    times.observe(500, 0, 0.5)
    assert times.reach == 500
    for _ in range(10):
        times.observe(3, 0, 0.01)
    assert 100 < times.reach < 400
    for _ in range(60):
        times.observe(3, 0, 0.01)
    assert times.reach < 10


@pytest.mark.parametrize("step", [(0, 0, 1.0), (5, 0, 0.0), (0, 5, -1.0)])
def test_what_says_nothing_is_not_learned(step: tuple[int, int, float]) -> None:
    """Fault: a clock that stands still, or an empty step, makes all that follows free."""
    times = StepTimes()
    times.observe(*step)
    assert not times.decodes.known
    assert not times.prompts.known
