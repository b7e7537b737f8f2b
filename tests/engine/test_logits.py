"""engine.logits: what a request makes of its logits, in which order, and of nobody else's."""

import math
import random
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.guides import Matcher
from engine.logits import SampleRow, adjusted
from engine.request import SamplingParams
from engine.sampling import Sampler, SamplingError
from tests.engine.scripted_guides import ScriptedGuides

VOCAB = 70  # more than two words of a mask, and not whole ones
EOS = 69


def row(
    generated: Sequence[int] = (),
    stop_tokens: Collection[int] = (),
    matcher: Matcher | None = None,
    **kw: Any,
) -> SampleRow:
    return SampleRow(SamplingParams(**kw), 0, (1, 2), generated, stop_tokens, matcher)


def script(grammar: str, generated: Sequence[int] = ()) -> Matcher:
    return ScriptedGuides(VOCAB, EOS).matcher(grammar, generated)


def gaussian(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def alone(logits: Tensor, one: SampleRow) -> Tensor:
    return adjusted(logits[None], [one])[0]


def test_a_row_that_asks_for_nothing_is_not_copied() -> None:
    logits = gaussian(2)
    assert adjusted(logits, [row(), row(min_tokens=2, generated=(5, 6))]) is logits


def test_what_the_model_gave_stays_as_it_was() -> None:
    logits = gaussian(3)
    before = logits.clone()
    rows = [row(), row(logit_bias=((5, 1.0),)), row(matcher=script("5"))]
    changed = adjusted(logits, rows)
    assert torch.equal(logits, before)
    assert torch.equal(changed[0], before[0])


class Unread(list[int]):
    """An answer whose length may be asked for, and nothing else."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("the whole answer was read for one token")

    def __getitem__(self, at: Any) -> Any:
        raise AssertionError("the answer was read")


@pytest.mark.parametrize("kind", ["bias", "grammar", "minimum"])
def test_only_penalties_read_what_was_generated(kind: str) -> None:
    """Reading it all for each token makes a long answer's cost quadratic."""
    more: dict[str, Any] = {
        "bias": {"logit_bias": {5: 3.5}},
        "grammar": {"matcher": script("5|6")},
        "minimum": {"min_tokens": 9, "stop_tokens": frozenset({EOS})},
    }[kind]
    logits, one = gaussian(1)[0], row(generated=Unread((5, 6)), **more)
    assert one.adjusts(2)
    assert not torch.equal(alone(logits, one), logits)


@pytest.mark.parametrize("grammar", [None, "5|6"])
def test_lists_are_read_when_a_request_begins_and_not_for_each_token(grammar: str | None) -> None:
    """A bias over a thousand tokens, in 32 rows, took as long as the model's own step."""
    one = row(
        logit_bias={5: 3.5, 64: -100.0},
        min_tokens=9,
        stop_tokens=frozenset({EOS}),
        matcher=script(grammar) if grammar else None,
    )
    logits = gaussian(1)[0]
    first = alone(logits, one)
    gone: Any = object()
    object.__setattr__(one.params, "logit_bias", gone)
    object.__setattr__(one, "stop_tokens", gone)
    assert torch.equal(alone(logits, one), first)
    assert first[EOS] == -math.inf


def test_a_bias_is_added_to_its_tokens_alone() -> None:
    logits = gaussian(1)[0]
    biased = alone(logits, row(logit_bias={5: 3.5, 64: -100.0}))
    want = logits.clone()
    want[5] += 3.5
    want[64] -= 100
    assert torch.equal(biased, want)


def test_a_bias_comes_after_penalties_and_before_the_temperature() -> None:
    """Before, a repetition penalty would scale the bias; after, the temperature would not."""
    logits = torch.full((4,), -50.0)
    logits[1], logits[2] = 4.0, 1.0
    one = row(logit_bias={1: -1.5, 2: 0.4}, repetition_penalty=2.0)
    assert alone(logits, one)[1:3].tolist() == pytest.approx([0.5, 0.9])
    drawn = [
        Sampler(4).sample(
            logits[None], [SampleRow(SamplingParams(temperature=2, logit_bias={2: 3}), i, (), ())]
        )[0]
        for i in range(400)
    ]
    assert 160 < drawn.count(1) < 240, "both are 4 now, and equally likely"


@pytest.mark.parametrize("made", range(5))
def test_nothing_may_end_an_answer_before_it_has_its_minimum(made: int) -> None:
    """Off by one, an answer of the minimum's length could not be had, or a shorter one could."""
    logits = torch.zeros(1, VOCAB)
    logits[0, [EOS, 7]] = torch.tensor([9.0, 8.0])
    one = row(generated=(5,) * made, stop_tokens=frozenset({EOS, 7}), temperature=0, min_tokens=3)
    assert Sampler(VOCAB).sample(logits, [one]) == [0 if made < 3 else EOS]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_only_what_a_grammar_allows_is_chosen(temperature: float, filters: dict[str, Any]) -> None:
    """A mask that one way of sampling forgets lets through what no parser can read."""
    logits = gaussian(50)
    logits[:, 40] += 60
    rows = [
        SampleRow(
            SamplingParams(temperature=temperature, logit_bias={40: 100}, **filters),
            i, (), (5,), (), script("5 31|32|63|64", (5,)),
        )
        for i in range(50)
    ]  # fmt: skip
    chosen = Sampler(VOCAB).sample(logits, rows)
    assert set(chosen) <= {31, 32, 63, 64}
    assert len(set(chosen)) > 1
    if temperature == 0:
        allowed = torch.tensor([31, 32, 63, 64])
        assert chosen == [int(allowed[i]) for i in logits[:, allowed].argmax(-1)]


def test_the_minimum_bans_an_end_that_the_grammar_allows_but_not_the_only_way_on() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, EOS] = 9
    sampler, ends = Sampler(VOCAB), frozenset({EOS})
    params: dict[str, Any] = {"temperature": 0, "min_tokens": 9}
    either = row(stop_tokens=ends, matcher=script(f"5|{EOS}"), **params)
    assert sampler.sample(logits, [either]) == [5]
    over = row((5,), ends, script("5 $", (5,)), **params)
    assert sampler.sample(logits, [over]) == [EOS]


def test_a_row_is_adjusted_alike_in_every_company() -> None:
    rng = random.Random(3)
    kinds: list[dict[str, Any]] = [
        {},
        {"logit_bias": {3: 2.5, 66: -1.25}},
        {"min_tokens": 4, "stop_tokens": frozenset({EOS, 7})},
        {"frequency_penalty": 0.7, "repetition_penalty": 1.3, "logit_bias": {5: 0.3}},
    ]
    rows = [row(generated=(5, 6), **kinds[i % 4]) for i in range(20)]
    rows += [row((5,), (), script("5 6|7 8", (5,)), presence_penalty=0.5) for _ in range(3)]
    logits = gaussian(len(rows))
    singly = [alone(logits[i], one) for i, one in enumerate(rows)]
    for size in (2, 7, len(rows)):
        picked = rng.sample(range(len(rows)), size)
        together = adjusted(logits[picked], [rows[i] for i in picked])
        assert torch.equal(together, torch.stack([singly[i] for i in picked]))


def test_a_row_with_nothing_left_fails_alone() -> None:
    logits = gaussian(2)
    logits[0, 5] = -math.inf
    fails, works = Sampler(VOCAB).sample(logits, [row(matcher=script("5")), row()])
    assert isinstance(fails, SamplingError)
    assert isinstance(works, int)
