"""engine.native.sampler: each choice is the one that Sampler makes of the same logits."""

import math
import random
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.logits import SampleRow
from engine.native.model import NativeModel
from engine.native.sampler import NativeSampler
from engine.noise import noise_key
from engine.request import SamplingParams
from engine.sampling import Sampler
from tests.engine.native.small import KINDS, library, random_model

KINDS_OF_ROWS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.2},
    {"temperature": 2.0},
    {"temperature": 1e-30},
    {"top_p": 0.9},
    {"top_p": 0.3, "temperature": 1.7},
    {"top_p": 0.999999},
    {"top_p": 1e-9},
    {"top_k": 1},
    {"top_k": 3},
    {"top_k": 50, "top_p": 0.8},
    {"min_p": 0.05},
    {"top_k": 200, "top_p": 0.95, "min_p": 0.01, "temperature": 0.8},
    {"temperature": 1.0, "logit_bias": ((5, 3.0),)},
]


@cache
def model() -> NativeModel:
    return NativeModel(library(), random_model(KINDS["llama"]), 16, threads=2)


def both(logits: Tensor, rows: list[SampleRow]) -> tuple[list[object], list[object]]:
    """What the kernels choose, and what torch does."""
    vocab = logits.shape[1]
    fast = NativeSampler(model())
    fast._vocab, fast._noise = vocab, Sampler(vocab)._noise
    return list(fast.sample(logits, rows)), list(Sampler(vocab).sample(logits, rows))


def rows(count: int, seed: int) -> list[SampleRow]:
    rng = random.Random(seed)
    return [
        SampleRow(
            SamplingParams(**KINDS_OF_ROWS[rng.randrange(len(KINDS_OF_ROWS))]),
            rng.getrandbits(64),
            [1],
            [2] * rng.randrange(50),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("vocab", [8, 101, 777, 49_152])
@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 4.0, 30.0])
def test_every_choice_is_the_same(vocab: int, scale: float) -> None:
    """A token ruled out though it would have won shifts answers a little, unseen."""
    torch.manual_seed(vocab)
    for seed in range(4):
        logits = torch.randn(24, vocab) * scale
        logits[:, ::3] = logits[:, ::3].round()  # many ties
        logits[seed, vocab // 2 :] = float("-inf")
        found, expected = both(logits, rows(24, seed))
        assert found == expected


def test_rarely_likely_tokens_win_as_often() -> None:
    """Flat logits, where noise decides alone: some thousand draws, all equal."""
    logits = torch.linspace(-0.5, 0.5, 301).repeat(3000, 1)
    drawn = [SampleRow(SamplingParams(), seed, [1], []) for seed in range(3000)]
    found, expected = both(logits, drawn)
    assert found == expected
    assert len(set(expected)) > 290


def test_ties_go_to_the_lowest_token_and_what_is_no_number_fails_alone() -> None:
    logits = torch.randn(6, 101)
    logits[0, [7, 50, 100]] = 9.0
    logits[1, 3] = float("nan")
    logits[2, 100] = float("inf")
    logits[3] = float("-inf")
    logits[4, 100] = 9.0
    found, expected = both(logits, [SampleRow(SamplingParams(temperature=0.0), 1, [1], [])] * 6)
    assert (found[0], found[4], found[5]) == (7, 100, expected[5])
    assert [str(error) for error in found[1:4]] == [str(error) for error in expected[1:4]]
    drawn, expected = both(logits, [SampleRow(SamplingParams(), 1, [1], [])] * 6)
    assert (drawn[0], drawn[4:]) == (expected[0], expected[4:])


def test_more_candidates_than_expected_are_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.native.sampler._ROOM", 1)
    found, expected = both(torch.zeros(9, 777), rows(9, 3))
    assert found == expected


def test_a_filter_cuts_where_the_temperature_says_and_not_near_it() -> None:
    """In float32 a temperature of 0.7 is another number: a token at the border was dropped."""
    logits = torch.zeros(400, 101)
    logits[:, 1:] = -20.0
    logits[:, 1] = -1.0
    # Between exp(-1 / 0.7) with 0.7 as float32 and as float64.
    border = (math.exp(-1 / 0.7) + math.exp(-1 / float(np.float32(0.7)))) / 2
    drawn = [
        SampleRow(SamplingParams(temperature=0.7, min_p=border), seed, [1], [])
        for seed in range(400)
    ]
    found, expected = both(logits, drawn)
    assert found == expected


def test_noise_is_rounded_as_elsewhere() -> None:
    """Near the lower end float32 has few numbers: unrounded, another token wins."""
    noise = Sampler(2)._noise
    every = noise.rows(torch.tensor([[noise_key(seed, 0)] for seed in range(100_000)]))
    seeds = (every.amin(1) < -2.2).nonzero().flatten().tolist()
    rows = every[seeds]
    assert len(seeds) > 10
    # The logits make up for the noise, but for the last bits.
    for offset in (1e-4, -1e-4, 3e-3, -3e-3):
        logits = torch.stack([-rows[:, 0], -rows[:, 1] + offset], 1)
        found, expected = both(logits, [SampleRow(SamplingParams(), s, [1], []) for s in seeds])
        assert found == expected
