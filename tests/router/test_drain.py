from random import Random

import pytest

from router.drain import WINDOW_S, Drain, spread


def test_rate_is_what_was_measured_during_the_backlog() -> None:
    drain = Drain()
    drain.observe_queue(0.0, 1)
    for tick in range(200):
        drain.ended(tick / 10, 0.4)
        drain.observe_queue(tick / 10, 5)
    assert drain.rate(20.0, live=4) == pytest.approx(10, rel=0.05)


def test_a_slow_past_leaves_the_window() -> None:
    drain = Drain()
    drain.observe_queue(0.0, 1)
    for second in range(100):
        drain.ended(second, 1.0)
    for tick in range(int(WINDOW_S) * 20):
        drain.ended(100 + tick / 20, 1.0)
    assert drain.rate(100 + WINDOW_S, live=20) == pytest.approx(20, rel=0.05)


def test_quiet_times_do_not_make_a_burst_look_hopeless() -> None:
    drain = Drain()
    for second in range(0, 600, 10):  # one request of half a second every ten seconds
        drain.ended(second, 0.5)
        drain.observe_queue(second, 0)
    drain.observe_queue(600.0, 50)
    assert drain.rate(600.0, live=64) == pytest.approx(64 / 0.5, rel=0.1)


def test_a_stalled_backlog_looks_slower_and_slower() -> None:
    drain = Drain()
    drain.observe_queue(0.0, 10)
    rates = [drain.rate(now, live=10) for now in (0.0, 1.0, 5.0, 20.0)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0


def test_memory_is_bounded_by_the_window_not_by_the_load() -> None:
    drain = Drain()
    drain.observe_queue(0.0, 1)
    for tick in range(50_000):
        drain.ended(tick / 500, 1.0)
    assert len(drain._ends) <= WINDOW_S + 1


@pytest.mark.parametrize("seconds", [0.0, 0.5, 7.0, 59.0, 1e9])
def test_retry_after_is_spread_even_at_its_limits_and_never_outside(seconds: float) -> None:
    rng = Random(1)
    values = [spread(seconds, 1.0, 60.0, rng) for _ in range(200)]
    assert all(1.0 <= value <= 60.0 for value in values)
    assert max(values) > 1.3 * min(values)
    assert len(set(values)) == 200


def test_narrow_limits_hold_too() -> None:
    rng = Random(1)
    assert {spread(s, 1.0, 1.0, rng) for s in (0.1, 5.0, 100.0)} == {1.0}
