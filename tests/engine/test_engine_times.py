"""What the engine says of its steps' times is what those who wait for tokens saw of them."""

from collections.abc import Iterable

import pytest

from engine.step_times import StepTimes
from engine.swap import Copy
from tests.engine.rig import WAITING_LOOPS, Bench

pytestmark = [
    pytest.mark.usefixtures("each_loop"),
    # When steps are launched ahead, the clock goes on while somebody looks at it.
    WAITING_LOOPS,
]


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
    assert times.steps[4:] == [(2, 1, 1.0), (0, 1, 1.0)]


def test_a_step_without_rows_is_none() -> None:
    """Fault: a step that had nothing to compute is learned as one that costs nothing."""
    times = Heard()
    bench = Bench(times=times)
    bench.engine.step()
    assert times.steps == []


def test_what_is_copied_to_and_from_host_memory_is_no_price_of_prompts() -> None:
    """Fault: swapping makes prompts look dear, so that more is swapped, and chunks get small."""
    clock, times = Clock(), Heard()
    bench = Bench(num_blocks=14, slots=30, monotonic=clock, times=times)
    bench.runner.before = lambda batch: clock.go(1.0)
    host = bench.engine._loop._pipeline._host
    assert host is not None
    make, made = host.make, 0

    def slow(copies: Iterable[Copy]) -> None:
        nonlocal made
        copies = list(copies)
        made += bool(copies)
        clock.go(64.0 * len(copies))
        make(copies)

    host.make = slow  # type: ignore[method-assign]
    for i in range(4):
        bench.submit(f"r{i}", tuple(range(3, 13 + i)), max_tokens=20)
    bench.run()
    assert bench.engine.stats().restored_tokens > 0
    assert {seconds for _, _, seconds in times.steps} == {1.0}
    assert len(times.steps) == bench.engine.progress().steps - made


def test_one_token_that_is_left_of_a_prompt_counts_as_a_decode() -> None:
    """Fault: what came from host memory or a cache is taken for a prompt that costs a step."""
    times = Heard()
    bench = Bench(times=times, cache=True, chunk=4)
    for key in ("a", "b"):
        bench.submit(key, tuple(range(3, 12)), max_tokens=2)
        bench.run()
    assert [step[:2] for step in times.steps] == [(4, 0), (4, 0), (0, 1), (0, 1), (0, 1), (0, 1)]
