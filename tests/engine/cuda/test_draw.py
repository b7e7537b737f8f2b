"""The drawing kernel: the noise of engine.noise, ties, and vocabularies of several slices."""

from unittest.mock import patch

import pytest
import torch

from engine.cuda import draw
from engine.cuda.draw import draw_tokens
from engine.noise import Noise, noise_key


def test_it_adds_the_noise_of_the_cpu() -> None:
    # All logits alike: the noise alone decides.
    vocab = 101
    keys = torch.tensor([noise_key(seed, 3) for seed in range(30)])
    expected = Noise(vocab, "cpu").rows(keys[:, None]).argmax(1)
    zeros, ones = torch.zeros(30), torch.ones(30)
    assert torch.equal(draw_tokens(torch.zeros(30, vocab), zeros, ones, keys), expected)


@pytest.mark.parametrize("scale", [0.0, 1e-37])
def test_of_equal_logits_the_first_wins_across_lanes_and_slices(scale: float) -> None:
    logits = torch.zeros(5, 40)
    for i, tokens in enumerate(([33, 39], [7, 38], [17, 16], [9], [10, 2])):
        logits[i, tokens] = 5.0
    if scale:  # noise decides between equals: leave one
        logits[0, 39] = logits[1, 38] = logits[2, 17] = logits[4, 10] = 0.0
    with patch.object(draw, "_SLICE", 16), patch.object(draw, "_WIDTH", 8):
        got = draw_tokens(logits, logits.amax(1), torch.full((5,), scale), torch.arange(5))
    assert got.tolist() == [33, 7, 16, 9, 2]


def test_what_is_masked_is_never_drawn() -> None:
    logits = torch.full((20, 9), float("-inf"))
    logits[:, 4] = logits[:, 6] = -1.0
    got = draw_tokens(logits, logits.amax(1), torch.ones(20), torch.arange(20))
    assert set(got.tolist()) == {4, 6}
