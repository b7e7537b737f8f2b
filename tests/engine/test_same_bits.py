"""The contract on the demo model: neither batching nor memory pressure changes an answer.

Every comparison is exact, of tokens and of logits, in both dtypes.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.backend import Backend, Limits, choose_backend
from engine.kv_pool import KVPool, KVShape
from engine.loader import load_model
from engine.model_info import model_info
from engine.prefill import Chunked
from engine.request import SamplingParams
from engine.runner import ModelRunner, Runner
from engine.self_check import Variance, check_same_bits
from tests.engine.lab import GREEDY, Answer, Job, run, same_bits
from tests.engine.native.small import library

BLOCK = 16
DTYPES = ("bfloat16", "float32")
CPU = torch.device("cpu")
VOCAB = 49_152
SEEDED = SamplingParams(
    temperature=1.0, top_p=0.9, top_k=200, min_p=0.01, frequency_penalty=1.0, presence_penalty=0.5
)


@pytest.fixture(
    scope="module",
    params=[(kernels, dtype) for kernels in ("native", "torch") for dtype in DTYPES],
    ids=lambda param: "-".join(param),
)
def backend(request: pytest.FixtureRequest, demo_model_dir: Path) -> Iterator[Backend]:
    kernels, dtype = request.param
    if kernels == "native":
        library()
    threads = torch.get_num_threads()
    yield choose_backend(
        kernels, load_model(demo_model_dir, dtype), Limits(BLOCK, 64, 2048, threads)
    )
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def shape(backend: Backend, demo_model_dir: Path) -> KVShape:
    info = model_info(demo_model_dir)
    return KVShape(info.num_layers, info.num_kv_heads, info.head_dim, backend.dtype)


@pytest.fixture(scope="module")
def runner(backend: Backend, shape: KVShape) -> Runner:
    return backend.runner(KVPool(shape, 400, BLOCK, CPU))


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
def alone(runner: Runner) -> tuple[list[Job], list[Answer]]:
    """33 requests, each run by itself."""
    requests = jobs(33, seed=1)
    return requests, [run(runner, [job]).answers[0] for job in requests]


@pytest.mark.parametrize("count", [2, 3, 5, 8, 16, 17, 32, 33])
def test_batched_equals_alone(
    runner: Runner, alone: tuple[list[Job], list[Answer]], count: int
) -> None:
    requests, answers = alone
    together = run(runner, requests[:count]).answers
    for i, (a, b) in enumerate(zip(together, answers, strict=False)):
        assert same_bits(a, b), f"request {i} of {count}"


def test_chunked_equals_whole(runner: Runner, alone: tuple[list[Job], list[Answer]]) -> None:
    requests, answers = alone
    for chunk, budget in ((7, 64), (64, 100)):
        cut = run(runner, requests[:9], prefill=Chunked(chunk), max_batch_tokens=budget).answers
        for i, (a, b) in enumerate(zip(cut, answers, strict=False)):
            assert same_bits(a, b), f"request {i} in chunks of {chunk}"


def test_preemption_recomputes_and_keeps_outputs(runner: Runner) -> None:
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
    assert roomy.preemptions == 0
    for slots in (0, 40):  # computed again, or brought back from host memory
        tight = run(runner, requests, num_blocks=14, swap_slots=slots)
        assert tight.preemptions > 0
        assert (tight.restored_tokens > 0) == (slots > 0)
        for i, (a, b) in enumerate(zip(tight.answers, roomy.answers, strict=True)):
            assert same_bits(a, b), f"request {i} with {slots} slots"


@pytest.mark.parametrize(("seats", "num_blocks"), [(3, None), (64, 9)], ids=["seats", "blocks"])
def test_admission_preemption_keeps_outputs(
    runner: Runner, seats: int, num_blocks: int | None
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


def test_prefix_hits_keep_outputs(runner: Runner) -> None:
    """Fault: K and V that another request computed, in other chunks and beside others, are not
    to the bit those that a request would have computed itself."""
    rng = random.Random(9)
    system = [rng.randrange(17, 40_000) for _ in range(75)]
    requests = [
        Job(
            prompt=tuple(
                system[: rng.choice([32, 70, 75])]
                + [rng.randrange(17, 40_000) for _ in range(rng.choice([1, 9, 40]))]
            ),
            max_tokens=rng.choice([3, 8]),
            params=SEEDED if i % 2 else GREEDY,
            seed=i,
            step=i,
        )
        for i in range(6)
    ]
    requests.append(replace(requests[0], step=7))
    plain = run(runner, [replace(job, step=0) for job in requests])
    assert (plain.found_tokens, plain.preemptions) == (0, 0)
    for num_blocks in (None, 20):
        cached = run(
            runner, requests, num_blocks, prefill=Chunked(48), max_batch_tokens=100, cache=True
        )
        assert cached.found_tokens > 150
        for i, (a, b) in enumerate(zip(cached.answers, plain.answers, strict=True)):
            assert same_bits(a, b), f"request {i} with {num_blocks} blocks"


def test_the_self_check_passes_here(backend: Backend, shape: KVShape) -> None:
    check_same_bits(backend.runner, shape, CPU, VOCAB)


def test_the_self_check_sees_a_linear_that_is_not_invariant(demo_model_dir: Path) -> None:
    """Without it a machine whose kernels differ would serve answers that depend on load."""
    info = model_info(demo_model_dir)
    shape = KVShape(info.num_layers, info.num_kv_heads, info.head_dim, torch.float32)
    plain = load_model(demo_model_dir, "float32")
    with pytest.raises(Variance, match="does not keep the same bits"):
        check_same_bits(lambda pool: ModelRunner(plain, pool), shape, CPU, VOCAB)
