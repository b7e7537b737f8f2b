import math
import pickle
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.logits import SampleRow
from engine.request import SamplingParams
from engine.sampling import Sampler, SamplingError, kept_tokens

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
VOCAB = 777  # odd: the last token has no partner in its hash

KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"top_k": 5},
    {"top_p": 0.7},
    {"min_p": 0.1},
    {"top_k": 50, "top_p": 0.9, "min_p": 0.02, "temperature": 1.4},
    {"frequency_penalty": 1.0, "presence_penalty": -0.5, "repetition_penalty": 1.3},
    {"temperature": 0.0, "repetition_penalty": 0.7, "frequency_penalty": 0.4},
    {"top_p": 0.999999},
]


def gaussian(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def row(
    seed: int = 0, prompt: Sequence[int] = (), generated: Sequence[int] = (), **kw: Any
) -> SampleRow:
    return SampleRow(SamplingParams(**kw), seed, prompt, generated)


def mixed_rows(count: int) -> list[SampleRow]:
    rng = random.Random(count)
    return [
        row(
            seed=rng.randrange(-(2**63), 2**63),
            prompt=[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 40))],
            generated=[rng.randrange(VOCAB) for _ in range(rng.randrange(40))],
            **KINDS[i % len(KINDS)],
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("group", [None, 1, 7, 256])
def test_a_row_draws_the_same_token_in_every_batch_and_order(
    device: str, group: int | None
) -> None:
    logits, rows = gaussian(64, VOCAB).to(device), mixed_rows(64)
    # Next to a row so large, another's differences would be rounded away.
    logits[::7] += 1e8
    sampler = Sampler(VOCAB, device, group)
    alone = [
        Sampler(VOCAB, device).sample(logits[i : i + 1], rows[i : i + 1])[0] for i in range(64)
    ]
    assert len(set(alone)) > 30
    rng = random.Random(5)
    for size in range(1, 65):
        picked = rng.sample(range(64), size)
        got = sampler.sample(logits[picked], [rows[i] for i in picked])
        assert got == [alone[i] for i in picked]


def test_a_vocabulary_that_torch_splits_over_threads_draws_the_same_in_every_batch() -> None:
    vocab = 49_152
    logits, rows = gaussian(8, vocab), mixed_rows(8)
    alone = [Sampler(vocab).sample(logits[i : i + 1], rows[i : i + 1])[0] for i in range(8)]
    assert Sampler(vocab).sample(logits, rows) == alone
    assert Sampler(vocab, group=8).sample(logits.flip(0), rows[::-1]) == alone[::-1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("vocab", [64, 1000, 49_152])
def test_greedy_ties_go_to_the_lowest_id_in_every_batch(device: str, vocab: int) -> None:
    rng = random.Random(vocab)
    planted = [sorted(rng.sample(range(vocab), 5)) for _ in range(64)]
    planted[0] = [0, vocab - 1]
    planted[1] = [vocab - 2, vocab - 1]
    logits = gaussian(64, vocab).clamp_max_(9)
    for i, ids in enumerate(planted):
        logits[i, ids] = 9.5
    logits = logits.to(device)
    sampler = Sampler(vocab, device)
    for size in (1, 2, 3, 17, 64):
        for start in range(0, 64 - size + 1, size):
            got = sampler.sample(logits[start : start + size], [row(temperature=0)] * size)
            assert got == [ids[0] for ids in planted[start : start + size]]


def draws(logits: Sequence[float], rows: list[SampleRow]) -> list[int]:
    batch = torch.tensor([logits]).expand(len(rows), -1)
    out = Sampler(len(logits), group=4096).sample(batch, rows)
    return [token for token in out if not isinstance(token, SamplingError)]


def chi_square(tokens: Sequence[int], probabilities: Sequence[float]) -> float:
    expected = [p * len(tokens) for p in probabilities]
    return sum(
        (tokens.count(token) - want) ** 2 / want for token, want in enumerate(expected) if want
    )


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("along", ["seeds", "positions"])
def test_draws_follow_the_softmax(along: str, temperature: float) -> None:
    logits = [2.0, 1.5, 1.0, 0.0, -0.5, -1.0, 0.3, 1.9]
    prefix = [0] * 12_000
    rows = [
        row(seed=i, temperature=temperature)
        if along == "seeds"
        else row(seed=1234, generated=prefix[:i], temperature=temperature)
        for i in range(4_000 if along == "positions" else 12_000)
    ]
    weights = [math.exp(logit / temperature) for logit in logits]
    tokens = draws(logits, rows)
    # 24.3 is the 0.1% point for 7 degrees of freedom.
    assert chi_square(tokens, [weight / sum(weights) for weight in weights]) < 24.3


def test_filtered_draws_follow_the_softmax_of_what_is_kept() -> None:
    logits = [2.0, 1.5, 1.0, 0.0, -0.5, -1.0, 0.3, 1.9]
    weights = [math.exp(logit) if logit >= 1.0 else 0.0 for logit in logits]
    tokens = draws(logits, [row(seed=i, top_k=4) for i in range(6_000)])
    assert set(tokens) == {0, 1, 2, 7}
    # 16.3 is the 0.1% point for 3 degrees of freedom.
    assert chi_square(tokens, [weight / sum(weights) for weight in weights]) < 16.3


def test_the_same_seed_and_position_draw_the_same_token_and_others_do_not() -> None:
    logits = [0.0] * 1000
    one, again = draws(logits, [row(seed=-5, generated=[1, 2]), row(seed=-5, generated=[3, 4])])
    assert one == again
    other_positions = draws(logits, [row(seed=-5, generated=[0] * n) for n in range(20)])
    other_seeds = draws(logits, [row(seed=n) for n in range(20)])
    assert len(set(other_positions)) > 15
    assert len(set(other_seeds)) > 15


def naive_kept(logits: list[float], temperature: float, k: int, p: float, m: float) -> list[int]:
    """The definition, in plain float64: sort, cut, cut, cut."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if k > 0:
        order = order[:k]
    top = max(logits)
    weights = {i: math.exp((logits[i] - top) / temperature) for i in order}
    total = math.fsum(weights.values())
    if p < 1:
        kept, mass = [], 0.0
        for i in order:
            # Not mass / total >= p: 810 times 1 / 900 is a bit less than 0.9.
            if mass >= p * total:
                break
            kept.append(i)
            mass += weights[i]
        order = kept
    return sorted(i for i in order if weights[i] >= m)


@pytest.mark.parametrize("device", DEVICES)
def test_filters_keep_exactly_what_the_definition_keeps(device: str) -> None:
    rng = random.Random(3)
    for trial in range(400):
        vocab = rng.choice([1, 2, 5, 50, 255, 256, 257, 900])
        logits = gaussian(vocab, seed=trial, scale=rng.choice([0.01, 1.0, 4.0]))
        if rng.random() < 0.5:
            logits = logits.round()  # ties everywhere, also across the cut
        if rng.random() < 0.3:
            logits[torch.rand(vocab, generator=torch.Generator().manual_seed(trial)) < 0.3] = -1e4
        params = SamplingParams(
            temperature=rng.choice([0.2, 0.7, 1.0, 2.0]),
            top_k=rng.choice([0, -1, 1, 2, 40, 300, 5000]),
            top_p=rng.choice([1.0, 1.0, 0.999, 0.9, 0.5, 0.05, 1e-9]),
            min_p=rng.choice([0.0, 0.0, 1e-4, 0.05, 0.6, 1.0]),
        )
        got = kept_tokens(logits.to(device), float(logits.max()), params).tolist()
        args = (params.temperature, params.top_k, params.top_p, params.min_p)
        assert got == naive_kept(logits.tolist(), *args), params


def test_top_p_counts_exactly_at_its_boundary() -> None:
    # Four equal tokens hold 0.25 each: two reach 0.5, and 0.51 needs a third.
    flat = torch.zeros(4)
    for top_p, count in [
        (1e-300, 1),
        (0.25, 1),
        (0.26, 2),
        (0.5, 2),
        (0.51, 3),
        (0.75, 3),
        (0.99, 4),
    ]:
        assert kept_tokens(flat, 0.0, SamplingParams(top_p=top_p)).tolist() == list(range(count))


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    logits = torch.tensor([0.0, 0.0, 0.0, 0.0])
    assert kept_tokens(logits, 0.0, SamplingParams(top_k=2, top_p=0.5)).tolist() == [0]


def test_top_p_finds_its_cut_among_all_tokens_when_the_likeliest_few_hold_too_little() -> None:
    logits = gaussian(49_152, scale=0.5)
    params = SamplingParams(top_p=0.95)
    got = kept_tokens(logits, float(logits.max()), params).tolist()
    assert len(got) > 10_000
    assert got == naive_kept(logits.tolist(), 1.0, 0, 0.95, 0.0)


def test_signed_zeros_are_ties() -> None:
    logits = torch.tensor([-0.0, 0.0, -0.0, 0.0, -9.0])
    assert kept_tokens(logits, 0.0, SamplingParams(top_k=3)).tolist() == [0, 1, 2]
    assert kept_tokens(logits, 0.0, SamplingParams(top_p=0.7)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("off", [{"top_k": 0}, {"top_k": -1}, {"top_k": VOCAB}, {"top_k": 10**9}])
def test_a_filter_that_is_off_changes_nothing(off: dict[str, Any]) -> None:
    logits = gaussian(50, VOCAB)
    sampler = Sampler(VOCAB)
    plain = sampler.sample(logits, [row(seed=i) for i in range(50)])
    assert sampler.sample(logits, [row(seed=i, **off) for i in range(50)]) == plain


@pytest.mark.parametrize("filters", [{"min_p": 1e-300}, {"top_k": 20}, {"top_p": 0.8}])
def test_a_filter_only_changes_draws_of_what_it_drops(filters: dict[str, Any]) -> None:
    # The noise and the scores do not depend on the path that a row takes.
    logits = gaussian(200, VOCAB)
    sampler = Sampler(VOCAB)
    tokens: dict[str, Any] = {"prompt": [1], "generated": [2, 3], "temperature": 0.8}
    plain = sampler.sample(logits, [row(seed=i, **tokens) for i in range(200)])
    got = sampler.sample(logits, [row(seed=i, **tokens, **filters) for i in range(200)])
    same = 0
    for i in range(200):
        params = SamplingParams(temperature=0.8, **filters)
        kept = kept_tokens(logits[i], float(logits[i].max()), params).tolist()
        if plain[i] in kept:
            assert got[i] == plain[i]
            same += 1
        else:
            assert got[i] in kept
    assert same > 100


@pytest.mark.parametrize("temperature", [1e-6, 1e-12, 1e-50, 5e-324])
@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.5}])
def test_a_tiny_temperature_is_greedy_without_overflow(
    temperature: float, filters: dict[str, Any]
) -> None:
    logits = gaussian(20, VOCAB, scale=30.0)
    logits[:, 3] = -math.inf
    rows = [row(seed=i, temperature=temperature, **filters) for i in range(20)]
    assert Sampler(VOCAB).sample(logits, rows) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [1e-6, 1e-50, 5e-324])
@pytest.mark.parametrize("filters", [{}, {"top_k": 3}])
def test_a_tiny_temperature_still_draws_among_ties(
    temperature: float, filters: dict[str, Any]
) -> None:
    rows = [row(seed=i, temperature=temperature, **filters) for i in range(20)]
    assert set(draws([0.0, 5.0, 4.9, 5.0], rows)) == {1, 3}


@pytest.mark.parametrize("params", KINDS)
def test_masked_tokens_are_never_drawn(params: dict[str, Any]) -> None:
    allowed = {3, 500, VOCAB - 1}
    logits = torch.full((100, VOCAB), -math.inf)
    logits[:, sorted(allowed)] = torch.tensor([-50.0, -49.0, -48.0])
    rows = [row(seed=i, prompt=[3, 4], generated=[500, 4], **params) for i in range(100)]
    assert set(Sampler(VOCAB).sample(logits, rows)) <= allowed


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("params", KINDS)
def test_a_row_without_usable_logits_fails_alone(device: str, params: dict[str, Any]) -> None:
    logits = gaussian(6, VOCAB).to(device)
    rows = [row(seed=i, prompt=[1], generated=[2], **params) for i in range(6)]
    sampler = Sampler(VOCAB, device)
    good = sampler.sample(logits, rows)
    logits[1] = -math.inf
    logits[3, 700] = math.nan
    logits[4, 0] = math.inf
    out = sampler.sample(logits, rows)
    errors = [i for i, token in enumerate(out) if isinstance(token, SamplingError)]
    assert errors == [1, 3, 4]
    assert [out[i] for i in (0, 2, 5)] == [good[i] for i in (0, 2, 5)]


def test_the_error_says_what_was_wrong_and_survives_pickling() -> None:
    logits = torch.full((1, 4), -math.inf)
    (error,) = Sampler(4).sample(logits, [row()])
    assert isinstance(error, SamplingError)
    again = pickle.loads(pickle.dumps(error))
    assert again.largest == -math.inf
    assert "-inf" in str(again)


def test_logits_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 4\)"):
        Sampler(4).sample(torch.zeros(2, 4), [row()])
    with pytest.raises(ValueError, match=r"\(1, 5\)"):
        Sampler(4).sample(torch.zeros(1, 5), [row()])
    assert Sampler(4).sample(torch.zeros(0, 4), []) == []


def test_penalties_are_what_their_definitions_say() -> None:
    # Row by row: one kind of penalty that turns the greedy choice around.
    prompt, generated = [0], [1, 1, 2]
    cases: list[tuple[list[float], dict[str, Any], int]] = [
        # Repetition divides what is positive, multiplies what is negative; prompt counts.
        ([2.0, 0.0, 0.0, 1.1], {"repetition_penalty": 2.0}, 3),
        ([2.0, 0.0, 0.0, 0.9], {"repetition_penalty": 2.0}, 0),
        ([-1.0, -9.0, -9.0, -1.5], {"repetition_penalty": 2.0}, 3),
        ([-1.0, -9.0, -9.0, -2.5], {"repetition_penalty": 2.0}, 0),
        # Frequency counts each time, in the output alone.
        ([2.0, 2.7, 0.0, 0.0], {"frequency_penalty": 0.5}, 0),
        ([1.4, 2.5, 0.0, 0.0], {"frequency_penalty": 0.5}, 1),
        ([2.0, 0.0, 2.4, 0.0], {"frequency_penalty": 0.5}, 0),
        ([2.0, 0.0, 2.6, 0.0], {"frequency_penalty": 0.5}, 2),
        # Presence counts once.
        ([2.0, 2.6, 0.0, 0.0], {"presence_penalty": 0.5}, 1),
        ([2.0, 2.4, 0.0, 0.0], {"presence_penalty": 0.5}, 0),
        # Negative penalties favour what was said.
        ([2.0, 0.0, 1.8, 0.0], {"presence_penalty": -0.5}, 2),
        # Repetition first, then the others: 4 / 2 - 1 - 0.5 = 0.5.
        (
            [0.0, 0.0, 4.0, 0.6],
            {"repetition_penalty": 2.0, "frequency_penalty": 1.0, "presence_penalty": 0.5},
            3,
        ),
        (
            [0.0, 0.0, 4.0, 0.4],
            {"repetition_penalty": 2.0, "frequency_penalty": 1.0, "presence_penalty": 0.5},
            2,
        ),
    ]
    logits = torch.tensor([case[0] for case in cases])
    before = logits.clone()
    rows = [row(prompt=prompt, generated=generated, temperature=0, **kw) for _, kw, _ in cases]
    assert Sampler(4).sample(logits, rows) == [want for _, _, want in cases]
    assert torch.equal(logits, before)


def test_penalties_come_before_temperature_and_filters() -> None:
    logits = torch.tensor([[5.0, 4.0, 3.0, -20.0]])
    drawn = row(generated=[0], presence_penalty=2.0, frequency_penalty=2.0, top_k=1)
    assert Sampler(4).sample(logits, [drawn]) == [1]


def test_penalties_read_any_sequence_of_tokens() -> None:
    logits = gaussian(3, VOCAB)
    kinds: list[Any] = [[5, 5, 700], (5, 5, 700), np.array([5, 5, 700])]
    rows = [
        row(prompt=tokens, generated=tokens, frequency_penalty=2.0, repetition_penalty=1.5)
        for tokens in kinds
    ]
    one = logits[:1].expand(3, -1)
    assert len(set(Sampler(VOCAB).sample(one, rows))) == 1


def fake_logits(tokens: Sequence[int]) -> Tensor:
    return gaussian(1, VOCAB, seed=hash(tuple(tokens)) & 0xFFFF, scale=1.0)


@pytest.mark.parametrize("seed", [7, -7])
def test_a_request_that_is_preempted_or_moved_goes_on_with_the_same_tokens(seed: int) -> None:
    # Seed 7, temperature 1, frequency penalty 1: the case of vLLM's pull request 19940.
    params = SamplingParams(temperature=1.0, frequency_penalty=1.0, repetition_penalty=1.2)
    prompt = [1, 2, 3]

    def go_on(generated: list[int], until: int, neighbours: int) -> list[int]:
        sampler = Sampler(VOCAB)  # as on another replica
        others = mixed_rows(neighbours)
        while len(generated) < until:
            mine = SampleRow(params, seed, prompt, generated)
            logits = torch.cat([gaussian(neighbours, VOCAB), fake_logits(prompt + generated)])
            token = sampler.sample(logits, [*others, mine])[-1]
            assert isinstance(token, int)
            generated = [*generated, token]
        return generated

    whole = go_on([], 30, 0)
    for cut in (1, 13, 29):
        assert go_on(go_on([], cut, 3), 30, 5) == whole


def test_half_precision_logits_are_read_as_float32() -> None:
    logits = gaussian(100, VOCAB).bfloat16()
    rows = [row(seed=i) for i in range(100)]
    sampler = Sampler(VOCAB)
    assert sampler.sample(logits, rows) == sampler.sample(logits.float(), rows)
