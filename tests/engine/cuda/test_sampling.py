"""The device's sampler against the CPU's: the same token from the same logits."""

import random
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from engine.cuda import filters, sampling
from engine.cuda.draw import draw_tokens
from engine.cuda.filters import Filters, apply
from engine.cuda.sampling import CudaSampler
from engine.logits import SampleRow
from engine.request import SamplingParams
from engine.sampling import Sampler, SamplingError, kept_tokens

VOCAB = 90


def row(seed: int = 0, generated: int = 0, **params: Any) -> SampleRow:
    return SampleRow(SamplingParams(**params), seed, [1, 2], list(range(generated)))


def some_rows(count: int) -> list[SampleRow]:
    rng = random.Random(count)
    return [
        row(
            rng.getrandbits(64),
            rng.randrange(9),
            temperature=rng.choice([0.0, 0.3, 1.0, 1.7]),
            top_k=rng.choice([0, 0, 1, 5, 40, 1000]),
            top_p=rng.choice([1.0, 1.0, 0.2, 0.7, 0.95]),
            min_p=rng.choice([0.0, 0.0, 0.05, 0.5]),
            frequency_penalty=rng.choice([0.0, 0.0, 0.6]),
        )
        for _ in range(count)
    ]


def gaussian(rows: int, vocab: int = VOCAB, seed: int = 0) -> Tensor:
    """Coarse enough that there are ties."""
    return (
        (torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2)
        .bfloat16()
        .float()
    )


def test_it_chooses_what_the_cpu_chooses() -> None:
    rows, logits = some_rows(48), gaussian(48)
    expected = Sampler(VOCAB).sample(logits, rows)
    assert CudaSampler(VOCAB, "cpu").sample(logits, rows) == expected
    assert len(set(map(str, expected))) > 20


def test_a_row_chooses_the_same_alone() -> None:
    rows, logits = some_rows(8), gaussian(8)
    sampler = CudaSampler(VOCAB, "cpu")
    together = sampler.sample(logits, rows)
    assert [sampler.sample(logits[i : i + 1], [rows[i]])[0] for i in range(8)] == together


def test_a_nucleus_larger_than_the_ranks_is_found_all_the_same() -> None:
    rows = [row(seed, temperature=1.5, top_p=0.98) for seed in range(6)]
    logits = gaussian(6) / 4
    with patch.object(sampling, "HEAD", 4):
        chosen = CudaSampler(VOCAB, "cpu").choose(logits, rows, [0] * 6, 4)
        assert not any(chosen.fetch()[2])
        assert CudaSampler(VOCAB, "cpu").sample(logits, rows) == Sampler(VOCAB).sample(logits, rows)


@pytest.mark.parametrize("bad", [[float("nan")] * 3, [float("inf"), 0, 0], [float("-inf")] * VOCAB])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"top_p": 0.5}, {"top_k": 3}])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy, in the interpreter
def test_a_row_without_usable_logits_fails_alone(bad: list[float], params: dict[str, Any]) -> None:
    logits, rows = gaussian(2), [row(i, **params) for i in range(2)]
    good = CudaSampler(VOCAB, "cpu").sample(logits, rows)
    logits[1, : len(bad)] = torch.tensor(bad)
    first, second = CudaSampler(VOCAB, "cpu").sample(logits, rows)
    assert first == good[0]
    assert isinstance(second, SamplingError)
    assert str(second) == str(SamplingError(float(logits[1].amax())))


@pytest.mark.parametrize("ranks", [filters.HEAD, VOCAB])
def test_filters_keep_what_the_cpu_keeps(ranks: int) -> None:
    params = [r.params for r in some_rows(200) if r.params.temperature > 0]
    params = [replace(p, top_k=min(p.top_k, 80)) for p in params]
    logits = gaussian(len(params), seed=3)
    made = Filters(
        logits.amax(1),
        torch.tensor([p.temperature for p in params], dtype=torch.float64),
        torch.tensor([p.top_k or VOCAB for p in params]),
        torch.tensor([p.top_p for p in params], dtype=torch.float64),
        torch.tensor([p.min_p for p in params], dtype=torch.float64).log(),
    )
    kept = apply(logits, made, ranks)
    assert bool(kept.complete.all())
    for i, p in enumerate(params):
        expected = kept_tokens(logits[i], float(logits[i].amax()), p)
        assert torch.equal(kept.logits[i].isfinite().nonzero().squeeze(1), expected), p


class Waits(TorchFunctionMode):
    """Writes down what would wait for a device: copies to the host, and sizes that data decide."""

    _CALLS = ("cpu", "item", "tolist", "nonzero", "masked_select", "unique")
    _NUMBERS = ("__bool__", "__int__", "__float__", "__index__")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.kernel = False  # the interpreter copies what a GPU's kernel reads where it lies

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        index = args[1] if func is Tensor.__getitem__ else None
        by_mask = isinstance(index, Tensor) and index.dtype == torch.bool
        if not self.kernel and (func.__name__ in self._CALLS + self._NUMBERS or by_mask):
            self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))

    def draw(self, *arguments: Tensor) -> Tensor:
        self.kernel = True
        try:
            return draw_tokens(*arguments)
        finally:
            self.kernel = False


def test_tokens_and_errors_come_in_one_copy() -> None:
    """Each copy waits for all that was launched, and the device idles meanwhile."""
    waits, logits, rows = Waits(), gaussian(48), some_rows(48)
    with patch.object(sampling, "draw_tokens", waits.draw), waits:
        chosen = CudaSampler(VOCAB, "cpu").sample(logits, rows)
    assert len(chosen) == 48
    assert waits.seen == ["cpu"]


def test_what_was_told_of_a_nucleus_that_was_not_found_at_once_is_taken_back() -> None:
    """The next step may have gone on from it: whoever launched that has to know."""
    rows = [row(seed, temperature=1.5, top_p=0.98) for seed in range(6)]
    logits, sampler = gaussian(6) / 4, CudaSampler(VOCAB, "cpu")
    with patch.object(sampling.CudaSampler.choose, "__defaults__", (4,)):
        choice = sampler.start(logits, rows)
        told = choice.tokens.tolist()
        chosen = choice.fetch()
    assert chosen == Sampler(VOCAB).sample(logits, rows)
    assert choice.changed == [i for i in range(6) if told[i] != chosen[i]] != []
    sure = sampler.start(logits, rows)
    assert (sure.tokens.tolist(), sure.changed) == (sure.fetch(), [])


def test_draws_are_those_of_their_positions_though_the_tokens_before_are_unknown() -> None:
    rows, logits = [replace(one, prompt=[3]) for one in some_rows(24)], gaussian(24)
    rows = [one for one in rows if not one.needs_tokens]
    late = [replace(one, generated=one.generated[:-1]) for one in rows]
    positions = [len(one.generated) for one in rows]
    sampler = CudaSampler(VOCAB, "cpu")
    sampled = sampler.start(logits[: len(rows)], late, positions)
    assert sampled.fetch() == sampler.sample(logits[: len(rows)], rows)


def test_nothing_waits_for_the_device_before_the_tokens_are_asked_for() -> None:
    waits, logits, rows = Waits(), gaussian(48), some_rows(48)
    with patch.object(sampling, "draw_tokens", waits.draw), waits:
        choice = CudaSampler(VOCAB, "cpu").start(logits, rows, [0] * 48)
        assert waits.seen == []
        choice.fetch()
    assert waits.seen == ["cpu"]


def test_logits_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(1, 90\), not \(2, 90\)"):
        CudaSampler(VOCAB, "cpu").sample(gaussian(1), some_rows(2))
    assert CudaSampler(VOCAB, "cpu").sample(gaussian(0), []) == []
