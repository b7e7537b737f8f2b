"""Least squares without negative coefficients, against every choice of which are 0."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.simulator.nnls import Floats, solve


def best_of_all(matrix: Floats, target: Floats) -> float:
    """The least distance that any set of positive coefficients gets to."""
    count = matrix.shape[1]
    best = float(np.linalg.norm(target))
    for size in range(1, count + 1):
        for chosen in itertools.combinations(range(count), size):
            part = matrix[:, chosen]
            x = np.linalg.lstsq(part, target, rcond=None)[0]
            if (x >= -1e-9).all():
                best = min(best, float(np.linalg.norm(part @ x - target)))
    return best


numbers = st.integers(-8, 8).map(float)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_nothing_without_negative_coefficients_is_nearer(data: st.DataObject) -> None:
    # Guards against: an active set that ends too early, or leaves a negative coefficient.
    points, count = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 4))
    flat = data.draw(st.lists(numbers, min_size=points * count, max_size=points * count))
    target = np.array(data.draw(st.lists(numbers, min_size=points, max_size=points)))
    matrix = np.array(flat).reshape(points, count)
    x = solve(matrix, target)
    assert (x >= 0.0).all()
    assert np.linalg.norm(matrix @ x - target) <= best_of_all(matrix, target) + 1e-6


def test_units_do_not_matter() -> None:
    # Guards against: a tolerance in the units of one column, which drops coefficients of 1e-9.
    rng = np.random.default_rng(1)
    matrix = rng.uniform(1.0, 2.0, (40, 3)) * np.array([1.0, 1e6, 1e-6])
    planted = np.array([3.0, 2e-9, 5e4])
    assert solve(matrix, matrix @ planted) == pytest.approx(planted, rel=1e-6)


def test_a_column_of_zeros_gets_nothing() -> None:
    assert list(solve(np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([2.0, 4.0]))) == [2.0, 0.0]


@pytest.mark.parametrize(
    ("matrix", "target"),
    [
        (np.ones((2, 1)), np.ones(3)),
        (np.ones((0, 1)), np.ones(0)),
        (np.full((1, 1), np.nan), np.ones(1)),
    ],
)
def test_what_cannot_be_solved_is_refused(matrix: Floats, target: Floats) -> None:
    with pytest.raises(ValueError, match=r"points|finite"):
        solve(matrix, target)
