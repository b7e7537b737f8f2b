"""The engine over a prefix cache: what is told of it, and what must not be found."""

import pytest

from engine.prefix_hash import chain
from engine.request import SamplingParams
from engine.runner import Batch
from engine.submission import Submission
from tests.engine.rig import WAITING_LOOPS, Bench

pytestmark = pytest.mark.usefixtures("each_loop")

PROMPT = tuple(range(5, 18))  # three full blocks of 4, and a token


def cached_tokens(bench: Bench, key: str) -> int:
    """What all the deltas of a request say of it together."""
    return sum(detail.cached_tokens for detail in bench.inbox.details(key))


def test_what_was_found_is_told_with_the_first_delta() -> None:
    """Fault: it is told again with later deltas, or counts what was generated."""
    bench = Bench(cache=True)
    bench.submit("a", PROMPT, logprobs=0)
    bench.run()
    bench.submit("b", PROMPT, logprobs=0)
    bench.run()
    assert bench.inbox.tokens("b") == bench.inbox.tokens("a")
    assert (cached_tokens(bench, "a"), cached_tokens(bench, "b")) == (0, 12)
    assert bench.inbox.details("b")[0].cached_tokens == 12

    generated = tuple(bench.inbox.tokens("a")[:5])
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
    bench.engine.submit(Submission("moved", PROMPT, params, generated=generated))
    bench.run()
    assert bench.engine.stats().found_tokens == 12 + 16
    assert cached_tokens(bench, "moved") == 0
    assert bench.inbox.tokens("moved") == bench.inbox.tokens("a")[5:]


def test_a_prompt_whose_log_probabilities_are_told_is_computed() -> None:
    """Fault: the log-probabilities of what was found are missing, or stand in wrong places."""
    plain, bench = Bench(), Bench(cache=True)
    for each in (plain, bench):
        each.submit("a", PROMPT, prompt_logprobs=1)
        each.run()
    bench.submit("b", PROMPT, prompt_logprobs=1)
    bench.run()
    told = bench.inbox.prompt_logprobs("b")
    assert len(told) == len(PROMPT)
    assert told == bench.inbox.prompt_logprobs("a") == plain.inbox.prompt_logprobs("a")
    assert bench.engine.stats().queried_tokens == 0


def test_salts_keep_requests_apart() -> None:
    """Fault: a submission's salt does not reach the cache."""
    bench = Bench(cache=True)
    params = SamplingParams(max_tokens=2, temperature=0.0)
    for key, salt in (("a", b"one"), ("b", b"two"), ("c", b"one")):
        bench.engine.submit(Submission(key, PROMPT, params, salt=salt))
        bench.run()
    assert [cached_tokens(bench, key) for key in "abc"] == [0, 0, 12]


def test_the_hashes_of_what_can_be_found_are_those_of_its_tokens() -> None:
    """Fault: the router is told of blocks by other names than gateways give them."""
    bench = Bench(cache=True)
    bench.submit("a", PROMPT, max_tokens=4)
    bench.engine.step()
    assert bench.engine.prefix_events() == (chain(PROMPT, 4), [])
    bench.run()
    whole = [*PROMPT, *bench.inbox.tokens("a")]
    assert bench.engine.prefix_events() == (chain(whole, 4)[3:], [])
    assert bench.engine.held_prefixes(99) == chain(whole, 4)
    assert bench.engine.prefix_events() == ([], [])
    assert Bench().engine.held_prefixes(99) == []
    assert Bench().engine.prefix_events() == ([], [])


def test_what_a_failed_step_left_behind_is_not_found() -> None:
    """Fault: blocks of a step that raised half-way are found by the next request."""
    bench = Bench(cache=True)

    def fail(batch: Batch) -> None:
        raise RuntimeError("no more memory")

    before, bench.runner.before = bench.runner.before, fail
    bench.submit("a", PROMPT)
    bench.run()
    assert bench.inbox.of("a")[-1].error is not None
    assert bench.engine.held_prefixes(99) == []
    bench.runner.before = before
    bench.submit("b", PROMPT)
    bench.run()
    assert cached_tokens(bench, "b") == 0


@WAITING_LOOPS
def test_an_abort_while_its_step_runs_leaves_what_was_computed_before() -> None:
    """Fault: tokens of the step that is under way count as computed."""
    bench = Bench(cache=True, chunk=8)
    bench.submit("a", PROMPT)
    bench.engine.step()

    def abort(batch: Batch) -> None:
        bench.engine.abort("a")

    before, bench.runner.before = bench.runner.before, abort
    bench.engine.step()
    bench.runner.before = before
    assert bench.engine.held_prefixes(99) == chain(PROMPT[:8], 4)
    bench.submit("b", PROMPT)
    bench.run()
    assert cached_tokens(bench, "b") == 8


def test_the_books_are_checked_in_debug_runs() -> None:
    """Fault: a debug run takes a block in two tables for an error, or sees none."""
    bench = Bench(cache=True, debug=True)
    bench.submit("a", PROMPT)
    bench.engine.step()
    bench.submit("b", PROMPT)
    bench.run()
    assert bench.inbox.tokens("a") == bench.inbox.tokens("b")
    bench.blocks._total += 1  # type: ignore[union-attr]
    bench.submit("c", PROMPT)
    with pytest.raises(Exception, match="blocks are not the"):
        bench.engine.step()
