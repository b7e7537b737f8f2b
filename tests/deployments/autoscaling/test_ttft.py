"""The recent time to first token, against all samples kept one by one."""

from bisect import bisect_left

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.autoscaling import TtftWindow
from deployments.autoscaling.ttft import WINDOW_S
from deployments.metrics import HISTOGRAMS, Counts, priority_class

BOUNDS = HISTOGRAMS["time_to_first_token_seconds"][0]


def counted(*values: float, priority: int = 0) -> Counts:
    counts = Counts()
    for value in values:
        counts.observe("time_to_first_token_seconds", value, priority_class(priority))
        counts.observe("inter_token_latency_seconds", 99.0)
    return counts


def test_no_data_is_no_quantile() -> None:
    window = TtftWindow()
    assert window.quantile(0.0) is None
    window.add(0.0, Counts())
    assert window.quantile(0.0) is None


def test_interpolates_inside_the_bucket() -> None:
    window = TtftWindow()
    window.add(0.0, counted(*[0.7] * 8))
    window.add(0.5, counted(1.1, 2.2, priority=5))
    # The ninth of ten: the first of two that share the bucket from 1 to 2.5.
    assert window.quantile(1.0) == pytest.approx(1.0 + 1.5 * 0.5)
    assert window.quantile(1.0, share=1.0) == pytest.approx(2.5)
    assert window.quantile(1.0, share=0.4) == pytest.approx(0.75)


def test_beyond_all_bounds_is_the_highest_bound() -> None:
    window = TtftWindow()
    window.add(0.0, counted(1e6, 1e6))
    assert window.quantile(0.0) == BOUNDS[-1]


def test_what_is_cleared_is_gone() -> None:
    window = TtftWindow()
    window.add(0.0, counted(5.0))
    window.clear()
    assert window.quantile(0.0) is None
    window.add(1.0, counted(0.7))
    assert window.quantile(1.0, share=1.0) == 1.0
    assert window.quantile(1.0 + WINDOW_S, share=1.0) == 1.0


def test_what_is_old_is_gone_though_nothing_new_comes() -> None:
    window = TtftWindow()
    window.add(0.0, counted(5.0))
    assert window.quantile(WINDOW_S) is not None
    assert window.quantile(WINDOW_S + 1) is None


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 20), st.lists(st.floats(0, 200), max_size=5)),
        max_size=30,
    ),
    st.sampled_from([0.5, 0.9, 1.0]),
)
def test_the_quantile_lies_in_the_bucket_of_the_sample_that_has_the_rank(
    arrivals: list[tuple[float, list[float]]], share: float
) -> None:
    window = TtftWindow()
    samples: list[tuple[int, float]] = []
    now = 0.0
    for passed, values in arrivals:
        now += passed
        window.add(now, counted(*values))
        samples += [(int(now), value) for value in values]
        recent = sorted(value for second, value in samples if second >= now - WINDOW_S)
        quantile = window.quantile(now, share)
        if not recent:
            assert quantile is None
            continue
        rank = next(i for i in range(len(recent)) if i + 1 >= share * len(recent))
        bucket = bisect_left(BOUNDS, recent[rank])
        edges = (0.0, *BOUNDS, BOUNDS[-1])
        assert quantile is not None
        assert edges[bucket] - 1e-9 <= quantile <= edges[bucket + 1] + 1e-9


def test_memory_is_bounded_by_the_window_not_by_the_gateways() -> None:
    window = TtftWindow()
    for tick in range(10_000):
        window.add(tick / 100, counted(0.5))
    assert len(window._seconds) <= WINDOW_S + 2
