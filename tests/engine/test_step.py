"""engine.step: a request that fails fails alone, and an engine that fails says so."""

from collections.abc import Iterator, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from engine.batch import Batch
from engine.failures import MAX_FAILURES
from engine.invariants import InvariantBroken
from engine.logits import SampleRow
from engine.submission import EngineFailed
from tests.engine.rig import TIMEOUT, Bench

pytestmark = pytest.mark.usefixtures("each_loop")


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.engine.stop(TIMEOUT)


def test_one_bad_request_gets_the_error_and_the_others_go_on(bench: Bench) -> None:
    def fail(batch: Batch) -> None:
        if 66 in batch.tokens:
            raise RuntimeError("no kernel for 66")

    bench.runner.before = fail
    bench.submit("good", (5, 6, 7))
    bench.submit("bad", (5, 66, 7))
    bench.submit("long", tuple(range(3, 40)))
    bench.run()
    (error,) = bench.inbox.of("bad")
    assert error.error == "RuntimeError: no kernel for 66"
    alone = Bench()
    for key, prompt in (("good", (5, 6, 7)), ("long", tuple(range(3, 40)))):
        alone.submit(key, prompt)
        alone.run()
        assert bench.inbox.tokens(key) == alone.inbox.tokens(key)
    assert bench.blocks.free_blocks == bench.blocks.total_blocks
    assert bench.engine.failure is None


def test_logits_that_are_no_numbers_fail_their_own_request(bench: Bench) -> None:
    hidden = bench.runner.hidden

    def poison(batch: Batch) -> Tensor:
        states = hidden(batch).clone()
        states[batch.tokens == 66] = torch.nan
        return states

    bench.runner.hidden = poison  # type: ignore[method-assign]
    bench.submit("good", (5, 6, 7))
    bench.submit("bad", (5, 66))
    bench.run()
    assert "no usable logits" in str(bench.inbox.of("bad")[-1].error)
    assert len(bench.inbox.tokens("good")) == 6


@pytest.mark.parametrize("part", ["sampler", "text"])
def test_a_request_that_fails_after_the_forward_fails_alone(bench: Bench, part: str) -> None:
    engine = bench.engine
    if part == "sampler":
        sample = engine._loop._pipeline._executor._sampler.sample

        def sampled(logits: Tensor, rows: Sequence[SampleRow]) -> object:
            if any(66 in row.prompt for row in rows):
                raise RuntimeError("no draw")
            return sample(logits, rows)

        engine._loop._pipeline._executor._sampler.sample = sampled  # type: ignore[method-assign,assignment]
    bench.submit("good")
    bench.submit("bad", (5, 66))
    if part == "text":
        (bad,) = (live for live in engine._lives if live.key == "bad")

        class Broken:
            def feed(self, token: int) -> None:
                raise RuntimeError("no text")

        bad.text = Broken()  # type: ignore[assignment]
    bench.run()
    assert bench.inbox.of("bad")[-1].error in ("RuntimeError: no draw", "RuntimeError: no text")
    assert len(bench.inbox.tokens("good")) == 6
    assert bench.blocks.free_blocks == bench.blocks.total_blocks


def test_any_number_of_requests_without_usable_logits_leave_the_engine_well(bench: Bench) -> None:
    """A replica that a few such requests could restart would take everyone else's down."""
    hidden = bench.runner.hidden
    bench.runner.hidden = lambda batch: hidden(batch) * torch.nan  # type: ignore[method-assign]
    bench.engine.start()
    for i in range(2 * MAX_FAILURES):
        bench.submit(f"bad{i}")
        bench.inbox.wait(partial(bench.inbox.ended, f"bad{i}"))
    bench.runner.hidden = hidden  # type: ignore[method-assign]
    bench.submit("good")
    bench.inbox.wait(lambda: bench.inbox.ended("good"))
    assert len(bench.inbox.tokens("good")) == 6
    assert bench.engine.failure is None


def test_books_that_do_not_add_up_end_the_engine_in_a_debug_run() -> None:
    bench = Bench(debug=True)
    bench.blocks.release = lambda id, computed: None  # type: ignore[method-assign]
    bench.submit("a", max_tokens=1)
    with pytest.raises(InvariantBroken):
        bench.run()


def test_when_nothing_works_any_more_the_engine_fails_and_every_request_hears_of_it(
    bench: Bench,
) -> None:
    """ray#61263: the step loop dies and its clients hang for ever."""

    def fail(batch: Batch) -> None:
        raise RuntimeError("device lost")

    bench.runner.before = fail
    for i in range(16):
        bench.submit(f"r{i}")
    bench.engine.start()
    bench.inbox.wait(lambda: all(bench.inbox.ended(f"r{i}") for i in range(16)))
    bench.inbox.wait(lambda: bench.engine.failure is not None)
    assert "device lost" in repr(bench.engine.failure)
    with pytest.raises(EngineFailed, match="device lost"):
        bench.submit("late")
    assert bench.blocks.free_blocks == bench.blocks.total_blocks


def test_prompts_that_fail_one_after_the_other_fail_the_engine(bench: Bench) -> None:
    """A step launched behind a failing one, for nobody, would say that all is well."""

    def fail(batch: Batch) -> None:
        if max(batch.lengths) > 1:
            raise RuntimeError("no kernel for prompts")

    bench.runner.before = fail
    bench.engine.start()
    for i in range(MAX_FAILURES):
        bench.submit(f"r{i}")
        bench.inbox.wait(partial(bench.inbox.ended, f"r{i}"))
    bench.inbox.wait(lambda: bench.engine.failure is not None)
    assert "no kernel for prompts" in repr(bench.engine.failure)


def test_single_failures_with_good_answers_between_them_do_not_fail_the_engine(
    bench: Bench,
) -> None:
    def fail(batch: Batch) -> None:
        if 66 in batch.tokens:
            raise RuntimeError("no kernel for 66")

    bench.runner.before = fail
    for i in range(2 * MAX_FAILURES):
        bench.submit(f"bad{i}", (5, 66))
        bench.run()
        bench.submit(f"good{i}", (5, 6), max_tokens=1)
        bench.run()
    assert all(bench.inbox.ended(f"bad{i}") for i in range(2 * MAX_FAILURES))


def test_a_prompt_that_is_being_computed_shows_that_the_engine_works(bench: Bench) -> None:
    """A step that samples nothing can still be a good one."""

    def fail(batch: Batch) -> None:
        if 66 in batch.tokens:
            raise RuntimeError("no kernel for 66")

    bench.runner.before = fail
    for i in range(MAX_FAILURES):
        bench.submit(f"bad{i}", (66,))
    bench.submit("long", tuple(range(3, 40)))
    bench.engine.start()
    bench.inbox.wait(lambda: bench.inbox.ended("long"))
    assert len(bench.inbox.tokens("long")) == 6
    assert bench.engine.failure is None
