"""engine.engine with overlap: what is told while the model runs, and what is seen too late."""

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from engine.batch import Batch
from engine.request import FinishReason
from tests.engine.rig import TIMEOUT, Bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(Bench, "overlap", True)
    bench = Bench(debug=True)
    yield bench
    bench.engine.stop(TIMEOUT)


class Gate:
    """Holds the model in some of its steps, counted from 0."""

    def __init__(self, bench: Bench, *steps: int) -> None:
        self.batches: list[Batch] = []
        self._steps = steps
        self._held, self._open = threading.Semaphore(0), threading.Semaphore(0)
        bench.runner.before = self._pass

    def _pass(self, batch: Batch) -> None:
        self.batches.append(batch)
        if len(self.batches) - 1 in self._steps:
            self._held.release()
            assert self._open.acquire(timeout=TIMEOUT)

    def wait(self) -> None:
        """Until the model is in one of the steps."""
        assert self._held.acquire(timeout=TIMEOUT)

    def open(self) -> None:
        self._open.release()


def test_a_step_is_told_while_the_next_one_is_computed(bench: Bench) -> None:
    gate = Gate(bench, 1)
    bench.engine.start()
    bench.submit("a", max_tokens=3)
    gate.wait()
    bench.inbox.wait(lambda: len(bench.inbox.tokens("a")) == 1)
    gate.open()
    bench.inbox.wait(lambda: bench.inbox.ended("a"))


def test_the_next_step_is_planned_while_one_is_computed(bench: Bench) -> None:
    gate = Gate(bench, 1)
    bench.engine.start()
    bench.submit("a", max_tokens=9)
    gate.wait()
    with bench.inbox._grew:
        assert bench.inbox._grew.wait_for(lambda: bench.engine.stats().steps == 3, TIMEOUT)
    gate.open()
    bench.inbox.wait(lambda: bench.inbox.ended("a"))


def test_a_stop_string_is_seen_a_step_late_and_the_token_after_it_is_nobodys(
    bench: Bench,
) -> None:
    bench.submit("whole", max_tokens=9)
    bench.run()
    third = bench.inbox.text("whole").split()[2]
    gate = Gate(bench)
    bench.submit("cut", max_tokens=9, stop=(third,))
    bench.run()
    assert len(gate.batches) == 4, "one more than the answer has tokens"
    assert bench.inbox.tokens("cut") == bench.inbox.tokens("whole")[:3]
    assert bench.inbox.of("cut")[-1].finish is FinishReason.STOP
    assert bench.blocks.free_blocks == bench.blocks.total_blocks


def test_a_stop_token_is_seen_before_the_next_step_is_launched(bench: Bench) -> None:
    bench.submit("whole", max_tokens=9)
    bench.run()
    third = bench.inbox.tokens("whole")[2]
    gate = Gate(bench)
    bench.submit("cut", max_tokens=9, stop_token_ids=(third,))
    bench.run()
    assert len(gate.batches) == bench.inbox.tokens("whole").index(third) + 1


def test_what_ends_by_length_and_by_a_stop_string_at_once_ends_by_the_string(
    bench: Bench,
) -> None:
    bench.submit("whole", max_tokens=3)
    bench.run()
    third = bench.inbox.text("whole").split()[2]
    bench.submit("cut", max_tokens=3, stop=(third,))
    bench.run()
    assert bench.inbox.of("cut")[-1].finish is FinishReason.STOP


@pytest.mark.parametrize("held", [0, 1, 3])
def test_an_abort_while_a_step_is_computed_leaves_the_others_their_answers(
    bench: Bench, held: int
) -> None:
    bench.submit("alone", (8, 9), max_tokens=8)
    bench.run()
    gate = Gate(bench, held)
    bench.engine.start()
    bench.submit("gone", max_tokens=8)
    gate.wait()
    bench.submit("late", (8, 9), max_tokens=8)
    assert bench.engine.abort("gone")
    assert bench.blocks.free_blocks == bench.blocks.total_blocks
    before = len(bench.inbox.of("gone"))
    gate.open()
    bench.inbox.wait(lambda: bench.inbox.ended("late"))
    assert len(bench.inbox.of("gone")) <= before + 1, "but one that was on its way"
    assert bench.inbox.tokens("late") == bench.inbox.tokens("alone")


def test_what_is_under_way_is_told_when_the_loop_is_stopped(bench: Bench) -> None:
    gate = Gate(bench, 2)
    bench.engine.start()
    bench.submit("a", max_tokens=9)
    gate.wait()
    ends = threading.Thread(target=bench.engine.stop, args=(TIMEOUT,))
    ends.start()
    bench.inbox.wait(lambda: len(bench.inbox.tokens("a")) == 2)
    gate.open()
    ends.join(TIMEOUT)
    assert len(bench.inbox.tokens("a")) == 3
    assert len(gate.batches) == 3


def test_one_who_waits_for_all_answers_has_been_told_all(bench: Bench) -> None:
    """LLM.generate makes steps while there are keys, and then takes what was told."""
    bench.submit("short", max_tokens=1)
    bench.submit("long", max_tokens=4)
    bench.run()
    assert bench.inbox.ended("short")
    assert bench.inbox.ended("long")
    assert not bench.engine.progress().busy


def test_a_step_that_is_interrupted_while_it_waits_can_be_taken_up_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in LLM.generate, and the next call finds the last one's step in flight."""
    worker = bench.engine._loop._pipeline._worker
    assert worker is not None
    bench.submit("a", max_tokens=3)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(worker, "result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            bench.engine.step()
    bench.engine.abort("a")
    bench.submit("b", (8, 9), max_tokens=3)
    bench.run()
    assert bench.inbox.of("a") == []
    assert len(bench.inbox.tokens("b")) == 3


def test_an_engine_that_nobody_has_any_more_leaves_no_thread(bench: Bench) -> None:
    before = set(threading.enumerate())
    other = Bench()
    other.submit("a", max_tokens=2)
    other.run()
    (thread,) = [one for one in threading.enumerate() if one not in before]
    gone = weakref.ref(other.engine)
    del other
    gc.collect()
    assert gone() is None
    thread.join(TIMEOUT)
    assert not thread.is_alive()
