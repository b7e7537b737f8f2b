"""Requests that are not to be started after some time."""

import pytest

from engine.request import SamplingParams
from engine.submission import EXPIRED, Delta, Submission
from tests.engine.rig import TIMEOUT, Bench

pytestmark = pytest.mark.usefixtures("each_loop")

PARAMS = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=4)


class Times:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def submit(bench: Bench, key: str, start_by: int | None) -> None:
    bench.engine.submit(Submission(key, (5, 6, 7), PARAMS, start_by=start_by))


@pytest.mark.parametrize(("now", "starts"), [(9, True), (10, True), (11, False)])
def test_it_may_start_until_its_tick_and_not_after(now: int, starts: bool) -> None:
    clock = Times()
    bench = Bench(clock=clock)
    submit(bench, "a", start_by=10)
    clock.now = now
    bench.run()
    if starts:
        assert len(bench.inbox.tokens("a")) == 4
    else:
        assert bench.inbox.of("a") == [Delta("a", error=EXPIRED)]
        assert bench.engine.progress().steps == 0
    assert not bench.engine.progress().busy
    assert bench.blocks.free_blocks == bench.blocks.total_blocks


def test_what_waits_behind_others_is_dropped_while_they_go_on() -> None:
    clock = Times()
    bench = Bench(max_seqs=1, clock=clock)
    submit(bench, "runs", start_by=10)
    submit(bench, "waits", start_by=11)
    submit(bench, "waits long", start_by=None)
    submit(bench, "comes in time", start_by=12)
    bench.engine.step()
    clock.now = 12
    bench.engine.step()
    assert bench.inbox.of("waits") == [Delta("waits", error=EXPIRED)]
    assert bench.engine.keys() == ("runs", "waits long", "comes in time")
    bench.run()
    for key in ("runs", "waits long", "comes in time"):
        assert len(bench.inbox.tokens(key)) == 4
    assert bench.engine.stats().waiting == 0


def test_one_that_has_started_is_not_dropped_when_it_has_made_way() -> None:
    """It has begun its answer: ending it is not the engine's to decide."""
    clock = Times()
    bench = Bench(max_seqs=1, clock=clock, admission_preemption=2)
    submit(bench, "a", start_by=10)
    bench.engine.step()
    bench.submit("urgent", priority=2)
    bench.engine.step()
    assert bench.engine.stats().waiting == 1
    clock.now = 20
    bench.run()
    assert len(bench.inbox.tokens("a")) == 4


def test_a_running_loop_tells_at_once_when_nothing_else_is_there() -> None:
    clock = Times()
    clock.now = 11
    bench = Bench(clock=clock)
    bench.engine.start()
    submit(bench, "a", start_by=10)
    bench.inbox.wait(lambda: bench.inbox.ended("a"))
    submit(bench, "b", start_by=11)
    bench.inbox.wait(lambda: bench.inbox.ended("b"))
    assert bench.engine.stop(TIMEOUT)
    assert bench.inbox.of("a") == [Delta("a", error=EXPIRED)]
    assert len(bench.inbox.tokens("b")) == 4


def test_one_that_was_aborted_is_not_told() -> None:
    clock = Times()
    bench = Bench(clock=clock)
    submit(bench, "a", start_by=10)
    assert bench.engine.abort("a")
    clock.now = 11
    submit(bench, "b", start_by=None)
    bench.run()
    assert bench.inbox.of("a") == []
