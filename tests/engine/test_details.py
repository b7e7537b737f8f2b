"""What deltas say beside tokens and text: log-probabilities, and how long a request waited."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine import step
from engine.batch import Batch
from engine.request import SamplingParams
from engine.submission import Detail, Submission
from tests.engine.rig import Bench
from tests.engine.tiny import VOCAB

pytestmark = pytest.mark.usefixtures("each_loop")

PROMPT = (5, 6, 7, 8, 9, 10, 11, 12, 13, 14)
ASKS = SamplingParams(
    max_tokens=8,
    temperature=1.0,
    seed=11,
    frequency_penalty=0.8,
    repetition_penalty=1.4,
    logit_bias={30: 4, 31: -100},
    top_k=40,
    ignore_eos=True,
    logprobs=5,
    prompt_logprobs=3,
)


def submit(bench: Bench, key: str = "a", params: SamplingParams = ASKS, **fields: Any) -> None:
    bench.engine.submit(Submission(key, **{"prompt": PROMPT, "params": params, **fields}))


def run(**bench: Any) -> Bench:
    """The request by itself, in an engine of its own."""
    alone = Bench(**bench)
    submit(alone)
    alone.run()
    return alone


def model_logprobs(tokens: tuple[int, ...]) -> Tensor:
    """Of the next token after each of ``tokens``, straight from the model."""
    bench = Bench()
    bench.submit("a", tokens, max_tokens=1)
    rows: list[Tensor] = []
    runner = bench.runner
    hidden = runner.hidden

    def record(batch: Batch) -> Tensor:
        states = hidden(batch)
        rows.append(runner.logits(states, range(len(batch.tokens))))
        return states

    runner.hidden = record  # type: ignore[method-assign]
    bench.run()
    return torch.log_softmax(torch.cat(rows).double(), dim=-1)


def test_nothing_is_said_of_a_token_that_nobody_asked_about() -> None:
    bench = Bench()
    bench.submit("a", max_tokens=3)
    bench.run()
    assert [delta.detail is None for delta in bench.inbox.of("a")] == [False, True, True]
    (first,) = bench.inbox.details("a")
    assert first == Detail(queued_s=first.queued_s)


def test_each_token_has_what_the_model_gave_it_before_anything_was_made_of_it() -> None:
    """vLLM's raw log-probabilities: not those after penalties, bias, temperature or top_k."""
    bench = run()
    tokens, told = bench.inbox.tokens("a"), bench.inbox.logprobs("a")
    assert [one.token for one in told] == tokens
    exact = model_logprobs((*PROMPT, *tokens))[len(PROMPT) - 1 : -1]
    for one, row in zip(told, exact, strict=True):
        assert one.logprob == pytest.approx(float(row[one.token]), abs=1e-4)
        assert [token for token, _ in one.top] == row.argsort(descending=True)[:5].tolist()
    assert all(len(delta.detail.logprobs) == 1 for delta in bench.inbox.of("a") if delta.detail)


def test_a_prompt_is_told_with_the_first_token_and_its_own_first_is_none() -> None:
    bench = run()
    told = bench.inbox.prompt_logprobs("a")
    exact = model_logprobs(PROMPT)
    assert told[0] is None
    assert [one.token for one in told if one] == [*PROMPT[1:]]
    for one, row in zip(told[1:], exact, strict=False):
        assert one is not None
        assert one.logprob == pytest.approx(float(row[one.token]), abs=1e-4)
        assert [token for token, _ in one.top] == row.argsort(descending=True)[:3].tolist()
    assert [bool(detail.prompt_logprobs) for detail in bench.inbox.details("a")] == (
        [True] + [False] * 7
    )


def test_a_prompt_of_one_token_has_one_entry() -> None:
    bench = Bench()
    submit(bench, prompt=(5,), params=replace(ASKS, logprobs=None, prompt_logprobs=0))
    bench.run()
    assert bench.inbox.prompt_logprobs("a") == [None]
    assert bench.inbox.logprobs("a") == []


@pytest.mark.parametrize("chunk", [1, 3, 9, 10, 16])
def test_they_have_the_same_bits_alone_batched_and_in_chunks(chunk: int) -> None:
    alone = run()
    bench = Bench(chunk=chunk)
    for i in range(6):
        bench.submit(f"r{i}", tuple(range(3, 5 + 3 * i)), max_tokens=9, logprobs=i or None)
        if i == 3:
            submit(bench)
    bench.run()
    assert bench.inbox.tokens("a") == alone.inbox.tokens("a")
    assert bench.inbox.logprobs("a") == alone.inbox.logprobs("a")
    assert bench.inbox.prompt_logprobs("a") == alone.inbox.prompt_logprobs("a")


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 6])
def test_they_are_told_once_with_the_same_bits_by_one_who_made_way(steps: int) -> None:
    """Preempted in its prompt, which takes four steps, or while it answers."""
    alone = run()
    bench = Bench(max_seqs=1, admission_preemption=2, debug=True, chunk=3)
    submit(bench)
    for _ in range(steps):
        bench.engine.step()
    bench.submit("urgent", (8, 9), priority=2)
    bench.engine.step()
    assert bench.engine.stats().admission_preemptions == 1
    bench.run()
    assert bench.inbox.logprobs("a") == alone.inbox.logprobs("a")
    assert bench.inbox.prompt_logprobs("a") == alone.inbox.prompt_logprobs("a")


@pytest.mark.parametrize("made", [1, 4, 7])
def test_one_that_goes_on_elsewhere_says_nothing_again(made: int) -> None:
    alone = run()
    tokens = alone.inbox.tokens("a")
    bench = Bench(chunk=3)
    submit(bench, generated=tuple(tokens[:made]))
    bench.run()
    assert bench.inbox.tokens("a") == tokens[made:]
    assert bench.inbox.logprobs("a") == alone.inbox.logprobs("a")[made:]
    assert bench.inbox.prompt_logprobs("a") == []


def test_a_long_prompt_is_scored_in_slices_of_only_its_own_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A vocabulary for each token of a long prompt at once would not fit in memory."""
    whole = run(chunk=64)
    monkeypatch.setattr(step, "SCORED_ROWS", 4)
    bench = Bench(chunk=64)
    logits, asked = bench.runner.logits, list[int]()

    def record(hidden: Tensor, rows: Any) -> Tensor:
        asked.append(len(rows))
        return logits(hidden, rows)

    bench.runner.logits = record  # type: ignore[method-assign]
    submit(bench, params=replace(ASKS, max_tokens=1))
    bench.submit("other", tuple(range(3, 40)), max_tokens=1)
    bench.run()
    assert asked == [2, 4, 4, 1]
    assert bench.inbox.prompt_logprobs("a") == whole.inbox.prompt_logprobs("a")


def test_a_prompt_that_cannot_be_scored_fails_alone() -> None:
    bench = Bench()
    hidden = bench.runner.hidden

    def poison(batch: Batch) -> Tensor:
        states = hidden(batch).clone()
        states[batch.tokens == 66] = torch.nan
        return states

    bench.runner.hidden = poison  # type: ignore[method-assign]
    for i in range(4):
        submit(bench, f"bad{i}", prompt=(5, 66, 7))
    submit(bench)
    bench.run()
    assert all("no usable logits" in str(bench.inbox.of(f"bad{i}")[0].error) for i in range(4))
    assert bench.inbox.logprobs("a") == run().inbox.logprobs("a")
    assert bench.blocks.free_blocks == bench.blocks.total_blocks


def test_prompts_are_scored_too_when_a_batch_has_to_be_run_one_by_one() -> None:
    bench = Bench()

    def fail(batch: Batch) -> None:
        if 66 in batch.tokens:
            raise RuntimeError("no kernel for 66")

    bench.runner.before = fail
    bench.submit("first", (5, 6, 7), max_tokens=2)
    submit(bench)
    submit(bench, "bad", prompt=(5, 66, 7))
    bench.run()
    assert bench.inbox.of("bad")[-1].error == "RuntimeError: no kernel for 66"
    assert bench.inbox.prompt_logprobs("a") == run().inbox.prompt_logprobs("a")
    assert bench.inbox.logprobs("a") == run().inbox.logprobs("a")


def test_the_wait_is_from_the_submission_to_the_first_step_and_is_told_once() -> None:
    now = 0.0
    bench = Bench(max_seqs=1, monotonic=lambda: now, chunk=2, admission_preemption=2)
    submit(bench, "first", params=replace(ASKS, max_tokens=1), prompt=(5, 6, 7, 8))
    now = 1.0
    bench.submit("second", max_tokens=2)
    now = 3.0
    bench.engine.step()
    now = 7.0
    bench.run()
    waits = {key: [d.queued_s for d in bench.inbox.details(key)] for key in ("first", "second")}
    assert waits == {"first": [3.0], "second": [6.0]}


def test_one_that_makes_way_has_waited_only_once() -> None:
    now = 0.0
    bench = Bench(max_seqs=1, monotonic=lambda: now, admission_preemption=2)
    bench.submit("a", max_tokens=4)
    now = 2.0
    bench.engine.step()
    now = 5.0
    bench.submit("urgent", priority=2, max_tokens=1)
    bench.run()
    assert [detail.queued_s for detail in bench.inbox.details("a")] == [2.0]
    assert [detail.queued_s for detail in bench.inbox.details("urgent")] == [0.0]


def test_one_that_fails_at_once_has_waited_too() -> None:
    now = 0.0
    bench = Bench(monotonic=lambda: now)

    def fail(batch: Batch) -> None:
        raise RuntimeError("no kernel")

    bench.runner.before = fail
    bench.submit("a")
    now = 4.0
    bench.run()
    (delta,) = bench.inbox.of("a")
    assert (delta.error, delta.detail) == ("RuntimeError: no kernel", Detail(queued_s=4.0))


def test_tokens_of_the_parameters_are_checked_when_they_are_submitted() -> None:
    """vllm#16529: an index out of range would fail everybody's step."""
    bench = Bench()
    for params in (SamplingParams(logit_bias={VOCAB: 1}), SamplingParams(stop_token_ids=(VOCAB,))):
        with pytest.raises(ValueError, match=f"must be token ids from 0 to {VOCAB - 1}"):
            submit(bench, params=params)
    assert bench.engine.keys() == ()
