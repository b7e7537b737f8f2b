"""engine.logprobs: how likely the model itself found a token."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.logprobs import LOWEST, token_logprobs
from engine.sampling import SamplingError


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_they_are_the_logarithm_of_the_softmax(top: int) -> None:
    logits = gaussian(777)
    exact = torch.log_softmax(logits.double(), dim=0)
    told = token_logprobs(logits, 5, top)
    assert told.token == 5
    assert told.logprob == pytest.approx(float(exact[5]), abs=1e-5)
    ids = [token for token, _ in told.top]
    assert ids == exact.argsort(descending=True)[:top].tolist()
    assert [value for _, value in told.top] == pytest.approx(exact[ids].tolist(), abs=1e-5)


@given(
    st.lists(st.sampled_from([-3.0, 0.0, -0.0, 1.5]), min_size=1, max_size=80), st.integers(0, 20)
)
def test_equal_ones_go_by_the_lower_id(values: list[float], top: int) -> None:
    told = token_logprobs(torch.tensor(values), 0, top)
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    assert [token for token, _ in told.top] == order[:top]


@pytest.mark.parametrize("levels", [2, 30, 300])
@pytest.mark.parametrize("top", [1, 7, 20])
def test_equal_ones_at_the_end_of_the_likeliest_go_by_the_lower_id(levels: int, top: int) -> None:
    """topk takes any of them; how many there are decides how they are found."""
    for seed in range(10):
        logits = torch.randint(levels, (3_000,), generator=torch.Generator().manual_seed(seed))
        told = token_logprobs(logits.float(), 0, top)
        order = logits.sort(descending=True, stable=True).indices
        assert [token for token, _ in told.top] == order[:top].tolist()


def test_an_impossible_token_has_a_number_that_json_knows() -> None:
    told = token_logprobs(torch.tensor([0.0, -math.inf, -math.inf]), 2, 3)
    assert told.logprob == LOWEST == -9999.0
    assert told.top == ((0, 0.0), (1, LOWEST), (2, LOWEST))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_no_numbers_is_an_error(bad: float) -> None:
    logits = gaussian(9)
    logits[3] = bad
    with pytest.raises(SamplingError):
        token_logprobs(logits, 0, 2)
    with pytest.raises(SamplingError):
        token_logprobs(torch.full((3,), -math.inf), 0, 2)


@pytest.mark.parametrize("vocab", [777, 49_152])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_wherever_it_lies_in_a_batch(
    vocab: int, dtype: torch.dtype
) -> None:
    """An odd vocabulary begins each row at another alignment."""
    row = gaussian(vocab).to(dtype)
    alone = token_logprobs(row.clone(), 5, 20)
    for size in (2, 7, 64):
        batch = gaussian(size, vocab, seed=size).to(dtype)
        for place in {0, 1, size - 1}:
            batch[place] = row
            assert token_logprobs(batch[place], 5, 20) == alone
