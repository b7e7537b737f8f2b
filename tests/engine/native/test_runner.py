"""engine.native.runner: a row's bits follow from its tokens, whatever it is computed with."""

import dataclasses
import random
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from engine.batch import batch_of
from engine.kv_pool import KVPool
from engine.native.library import Element
from engine.native.runner import NativeRunner
from tests.engine.native.small import (
    BLOCKS,
    KINDS,
    SIZES,
    VOCAB,
    library,
    logits,
    native,
    random_model,
    segment,
)

LENGTH = 150  # crosses tiles of 64 keys, ends inside one
SHAPES = [  # head size, query heads, key and value heads, block size
    (16, 6, 2, 16),
    (32, 4, 4, 32),
    (64, 9, 3, 16),
    (80, 8, 1, 48),
    (128, 14, 2, 16),
]


ELEMENTS = list(Element)


TILE = 64


def sharpen(model: PreTrainedModel) -> None:
    """Make attention's weights differ by orders of magnitude."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "q_proj" in name:
                weight.mul_(100)


def runner(
    shape: tuple[int, int, int, int],
    element: Element,
    threads: int = 2,
    weights: Callable[[PreTrainedModel], None] | None = None,
) -> NativeRunner:
    """A random model of a shape, or a skipped test where the processor has no such unit."""
    dim, query_heads, heads, block = shape
    dtype = torch.float32 if element is Element.FLOAT32 else torch.bfloat16
    matrix_unit = element is Element.MATRIX_BFLOAT16
    if matrix_unit and not library().matrix_unit:
        pytest.skip("there is no matrix unit")
    config = LlamaConfig(
        **{
            **SIZES,
            "head_dim": dim,
            "hidden_size": 6 * query_heads,
            "num_attention_heads": query_heads,
            "num_key_value_heads": heads,
        }
    )
    model = random_model(config, dtype)
    if weights is not None:
        weights(model)
    return native(model, 9, block, threads, matrix_unit)


def tokens(sequence: int) -> list[int]:
    return random.Random(sequence).choices(range(VOCAB), k=LENGTH)


def in_chunks(runner: NativeRunner, seed: int, most: int, company: int) -> Tensor:
    """Sequence 0 in random chunks, each beside chunks and decodes of others."""
    rng = random.Random(seed)
    own, rows, start = tokens(0), [], 0
    done = [0] * (company + 1)
    while start < LENGTH:
        length = min(rng.randint(1, most), LENGTH - start)
        parts = [(0, start, own[start : start + length])]
        for other in range(1, company + 1):
            part = min(rng.choice([1, 1, rng.randint(1, most)]), LENGTH - done[other])
            if part:
                begin = done[other]
                parts.append((other, begin, tokens(other)[begin : begin + part]))
                done[other] += part
        at = rng.randrange(len(parts))
        parts[0], parts[at] = parts[at], parts[0]
        rows.append(logits(runner, parts)[at])
        start += length
    return torch.cat(rows)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chunks_decodes_and_company_change_no_bit(
    shape: tuple[int, int, int, int], element: Element
) -> None:
    one = runner(shape, element)
    (whole,) = logits(one, [(0, 0, tokens(0))])
    for seed, (most, company) in enumerate([(1, 0), (1, 8), (9, 3), (70, 8)]):
        assert torch.equal(in_chunks(one, seed, most, company), whole), (most, company)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_sums_of_unequal_weights_keep_their_bits(element: Element) -> None:
    """Products of two bfloat16 of like size add up exactly, in any order: that shows nothing."""
    one = runner(SHAPES[2], element, weights=sharpen)
    rows = range(TILE, LENGTH)
    for sequence in range(2):
        own = tokens(sequence)
        (whole,) = logits(one, [(0, 0, own)])
        (first,) = logits(one, [(1, 0, own[:TILE])])
        decoded = [logits(one, [(1, at, [own[at]])])[0] for at in rows]
        assert torch.equal(torch.cat([first, *decoded]), whole), sequence


@pytest.mark.parametrize("element", [Element.BFLOAT16, Element.MATRIX_BFLOAT16], ids=str)
def test_the_number_of_threads_changes_no_bit(element: Element) -> None:
    """A stream is resumed on any replica with the same kernels, however many cores it has."""
    found = [
        logits(runner(SHAPES[2], element, threads), [(0, 0, tokens(0)), (1, 0, [5])])
        for threads in (1, 2, 5)
    ]
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_what_an_earlier_owner_left_in_a_block_reaches_nobody(element: Element) -> None:
    """One value that is no number would make the next owner's answer nonsense."""
    fresh, used = runner(SHAPES[2], element), runner(SHAPES[2], element)
    used.pool._data.fill_(float("nan"))
    for start in (0, 100):
        part = tokens(0)[start : start + 100]
        assert torch.equal(
            logits(used, [(0, start, part)])[0], logits(fresh, [(0, start, part)])[0]
        )


def test_a_row_that_is_no_number_is_seen_and_fails_alone() -> None:
    """It must end its own request with an error, not with a token."""
    model = random_model(KINDS["llama"])
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = float("nan")
    one = native(model, sequences=2)
    good, bad = logits(one, [(0, 0, [1, 2, 3]), (1, 0, [1, 7])])
    assert good.isfinite().all()
    assert bad[0].isfinite().all()
    assert bad[1].isnan().all()


def test_scores_of_any_rows_are_those_of_all_rows() -> None:
    one = native(random_model(KINDS["llama"]), sequences=9)
    (everywhere,) = logits(one, [(0, 0, tokens(0))])
    hidden = one.hidden(batch_of(tokens(0), [segment(0, 0, LENGTH)], []))
    for rows in ([LENGTH - 1], [5, 4, 3], list(range(64))):
        assert torch.equal(one.logits(hidden, rows), everywhere[rows])


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_a_token_that_is_none_is_an_error(token: int) -> None:
    """It would read memory that is not the model's."""
    with pytest.raises(IndexError, match=f"from 0 to {VOCAB - 1}"):
        logits(native(random_model(KINDS["llama"])), [(0, 0, [1, token])])


def test_a_position_without_an_angle_is_an_error() -> None:
    one = native(random_model(KINDS["llama"]), block_tokens=48)
    assert BLOCKS * 48 > 512
    with pytest.raises(IndexError, match="from 0 to 511"):
        logits(one, [(0, 512, [1])])


def test_a_pool_of_another_shape_is_refused() -> None:
    """The kernels would write beyond it."""
    model = native(random_model(KINDS["llama"]))._model
    shape, cpu = model.shape, torch.device("cpu")
    for wrong, block in ((shape, 32), (dataclasses.replace(shape, layers=1), 16)):
        with pytest.raises(ValueError, match="the model needs"):
            NativeRunner(model, KVPool(wrong, 4, block, cpu))


def test_threads_that_the_system_refuses_are_done_without() -> None:
    """A container's limit ended the process."""
    code = (
        "import resource, torch\n"
        "from tests.engine.native.small import KINDS, logits, native, random_model\n"
        "model = random_model(KINDS['llama'])\n"
        "native(model)\n"
        "import psutil\n"
        "room = psutil.Process().memory_info().vms + (256 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (room, room))\n"
        "print(logits(native(model, threads=500), [(0, 0, [1, 2])])[0].isfinite().all().item())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr


def test_a_process_that_ends_while_a_step_is_computed_ends_quietly() -> None:
    """Its weights were freed under the step."""
    # Nothing of torch runs in the thread: that may not outlive the interpreter either.
    code = (
        "import threading, time, torch\n"
        "from tests.engine.native.small import KINDS, native, random_model\n"
        "model = native(random_model(KINDS['llama']))._model\n"
        "hidden, rows = torch.zeros(900, model.width), torch.arange(900, dtype=torch.int32)\n"
        "out, steps = torch.empty(900, model.vocab), []\n"
        "def run():\n"
        "    while True:\n"
        "        steps.append(model.logits(hidden, rows, out))\n"
        "threading.Thread(target=run, daemon=True).start()\n"
        "while len(steps) < 5: time.sleep(0.001)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=100, check=False)
    assert done.returncode == 0
