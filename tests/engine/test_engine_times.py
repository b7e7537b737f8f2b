"""What the engine says of its steps' times is what those who wait for tokens saw of them."""

import pytest

from engine.step_times import StepTimes
from tests.engine.rig import Bench

pytestmark = pytest.mark.usefixtures("each_loop")


class Heard(StepTimes):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[int, int, float]] = []

    def observe(self, prompt_tokens: int, decodes: int, seconds: float) -> None:
        self.steps.append((prompt_tokens, decodes, seconds))


class Clock:
    """Stands still but when the model runs, which takes a second, or when it is told to go on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def go(self, seconds: float) -> None:
        self.now += seconds


def test_a_step_counts_from_the_one_before_and_from_an_arrival_after_idleness() -> None:
    """Fault: what lies between two steps is left out, or idleness is taken for a slow step."""
    clock, times = Clock(), Heard()
    bench = Bench(monotonic=clock, chunk=4, times=times)
    bench.runner.before = lambda batch: clock.go(1.0)
    clock.go(50.0)
    bench.submit("a", tuple(range(3, 9)), max_tokens=3)
    clock.go(0.5)
    bench.engine.step()
    clock.go(0.25)  # what is done between steps is part of the next one
    bench.run()
    assert times.steps == [(4, 0, 1.5), (2, 0, 1.25), (0, 1, 1.0), (0, 1, 1.0)]
    clock.go(50.0)
    bench.submit("b", (3, 4), max_tokens=2)
    bench.submit("c", (3,), max_tokens=1)
    bench.run()
    assert times.steps[4:] == [(3, 0, 1.0), (0, 1, 1.0)]


def test_a_step_without_rows_is_none() -> None:
    """Fault: a step that had nothing to compute is learned as one that costs nothing."""
    times = Heard()
    bench = Bench(times=times)
    bench.engine.step()
    assert times.steps == []
