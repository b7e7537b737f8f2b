"""The contract on the demo model: neither batching nor memory pressure changes an answer.

Every comparison is exact, of tokens and of logits, in both dtypes.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.kv_pool import KVPool, KVShape
from engine.linear import make_invariant
from engine.loader import load_model
from engine.model_info import model_info
from engine.prefill import Chunked
from engine.request import SamplingParams
from engine.runner import ModelRunner
from engine.self_check import Variance, check_same_bits
from tests.engine.lab import GREEDY, Answer, Job, run, same_bits

BLOCK = 16
SEEDED = SamplingParams(
    temperature=1.0, top_p=0.9, top_k=200, min_p=0.01, frequency_penalty=1.0, presence_penalty=0.5
)


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def runner(request: pytest.FixtureRequest, demo_model_dir: Path) -> ModelRunner:
    info = model_info(demo_model_dir)
    model = load_model(demo_model_dir, request.param)
    make_invariant(model)
    shape = KVShape(info.num_layers, info.num_kv_heads, info.head_dim, model.dtype)
    return ModelRunner(model, KVPool(shape, 400, BLOCK, torch.device("cpu")))


def jobs(count: int, seed: int) -> list[Job]:
    """Requests of mixed lengths, greedy and seeded in turn, at mixed priorities."""
    rng = random.Random(seed)
    return [
        Job(
            prompt=tuple(rng.randrange(17, 40_000) for _ in range(rng.choice([1, 5, 17, 60, 130]))),
            max_tokens=rng.randrange(2, 7),
            params=SEEDED if i % 2 else GREEDY,
            seed=rng.getrandbits(64),
            priority=rng.randrange(3),
        )
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def alone(runner: ModelRunner) -> tuple[list[Job], list[Answer]]:
    """33 requests, each run by itself."""
    requests = jobs(33, seed=1)
    return requests, [run(runner, [job]).answers[0] for job in requests]


@pytest.mark.parametrize("count", [2, 3, 5, 8, 16, 17, 32, 33])
def test_batched_equals_alone(
    runner: ModelRunner, alone: tuple[list[Job], list[Answer]], count: int
) -> None:
    requests, answers = alone
    together = run(runner, requests[:count]).answers
    for i, (a, b) in enumerate(zip(together, answers, strict=False)):
        assert same_bits(a, b), f"request {i} of {count}"


def test_chunked_equals_whole(runner: ModelRunner, alone: tuple[list[Job], list[Answer]]) -> None:
    requests, answers = alone
    for chunk, budget in ((7, 64), (64, 100)):
        cut = run(runner, requests[:9], prefill=Chunked(chunk), max_batch_tokens=budget).answers
        for i, (a, b) in enumerate(zip(cut, answers, strict=False)):
            assert same_bits(a, b), f"request {i} in chunks of {chunk}"


def test_preemption_recomputes_and_keeps_outputs(runner: ModelRunner) -> None:
    """vllm PR#19940: a pool so small that it preempts gives the tokens of a roomy one."""
    rng = random.Random(7)
    requests = [
        Job(
            prompt=tuple(rng.randrange(17, 40_000) for _ in range(30)),
            max_tokens=24,
            params=SamplingParams(temperature=1.0, frequency_penalty=1.0) if i % 2 else GREEDY,
            seed=7,
        )
        for i in range(5)
    ]
    roomy = run(runner, requests, num_blocks=200)
    tight = run(runner, requests, num_blocks=14)
    assert roomy.preemptions == 0
    assert tight.preemptions > 0
    for i, (a, b) in enumerate(zip(tight.answers, roomy.answers, strict=True)):
        assert same_bits(a, b), f"request {i}"


@pytest.mark.parametrize(("seats", "num_blocks"), [(3, None), (64, 9)], ids=["seats", "blocks"])
def test_admission_preemption_keeps_outputs(
    runner: ModelRunner, seats: int, num_blocks: int | None
) -> None:
    """Whoever made way for an urgent newcomer says what it would have said, to the bit."""
    rng = random.Random(8)
    requests = [
        Job(
            prompt=tuple(rng.randrange(17, 40_000) for _ in range(40)),
            max_tokens=8,
            params=SEEDED if i % 2 else GREEDY,
            seed=i,
            priority=0 if i < 3 else 5,
            step=0 if i < 3 else i + 2,
        )
        for i in range(5)
    ]
    undisturbed = run(runner, [replace(job, step=0) for job in requests])
    pressed = run(
        runner, requests, num_blocks, max_seqs=seats, prefill=Chunked(16), admission_preemption=2
    )
    assert (undisturbed.preemptions, pressed.admission_preemptions) == (0, 2)
    for i, (a, b) in enumerate(zip(pressed.answers, undisturbed.answers, strict=True)):
        assert same_bits(a, b), f"request {i}"


def test_the_self_check_passes_here_and_sees_a_linear_that_is_not_invariant(
    runner: ModelRunner, demo_model_dir: Path
) -> None:
    """Without it a machine whose kernels differ would serve answers that depend on load."""
    shape, cpu, vocab = runner.pool.shape, torch.device("cpu"), 49_152
    check_same_bits(lambda pool: ModelRunner(runner._model, pool), shape, cpu, vocab)
    if shape.dtype == torch.float32:
        plain = load_model(demo_model_dir, "float32")
        with pytest.raises(Variance, match="does not keep the same bits"):
            check_same_bits(lambda pool: ModelRunner(plain, pool), shape, cpu, vocab)
