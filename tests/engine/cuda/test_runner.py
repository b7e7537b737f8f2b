"""Llama-like models through the Triton kernels, against transformers and against themselves."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine import self_check
from engine.attention.plan import Segment
from engine.batch import batch_of
from engine.cuda import gemm
from engine.cuda.decoder import Decoder, can_decode
from engine.cuda.runner import CudaRunner
from engine.kv_pool import KVPool, KVShape
from engine.self_check import check_same_bits

pytestmark = pytest.mark.usefixtures("matrix_units")

VOCAB, HEAD_DIM, KV_HEADS = 48, 16, 1
TOKENS = [(i * 37 + 11) % VOCAB for i in range(11)]
TABLE = [7, 3, 5]
OTHER = [1, 2, 6]


def tiny(kind: Any, config: Any, layers: int = 1, **extra: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    made = config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=64,
        initializer_range=0.3,
        **extra,
    )
    model: PreTrainedModel = kind(made).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:  # zeros and ones hide mistakes
                parameter.add_(torch.randn_like(parameter) / 4)
    return model


def reference(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([tokens])).logits[0].float()
    return logits


@pytest.fixture(autouse=True)
def _few_tries() -> Iterator[None]:
    """Without the check of tiles, which has tests of its own; with segments all the same."""
    with (
        patch.object(gemm, "usable_tiles", lambda n, k, like: gemm._tiles(n, like.dtype)),
        patch.object(gemm, "_SHORTEST_SEGMENT", 32),
    ):
        yield


def runner_of(model: PreTrainedModel, graphs: int = 2) -> CudaRunner:
    shape = KVShape(model.config.num_hidden_layers, KV_HEADS, HEAD_DIM, model.dtype)
    pool = KVPool(shape, 8, 4, torch.device("cpu"))
    pool.data.fill_(float("nan"))  # what is not written must not be read
    return CudaRunner(Decoder(model, 32), pool, graphs, 32)


def run(runner: CudaRunner, table: list[int], start: int, tokens: Sequence[int]) -> Tensor:
    segment = Segment(table, start, len(tokens))
    return runner.forward(batch_of(tokens, [segment], range(len(tokens))))


@pytest.mark.parametrize(
    ("kind", "config", "extra"),
    [
        (LlamaForCausalLM, LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
        (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
        (Qwen3ForCausalLM, Qwen3Config, {}),
    ],
)
def test_logits_are_those_of_transformers(kind: Any, config: Any, extra: dict[str, Any]) -> None:
    model = tiny(kind, config, **extra)
    expected = reference(model, TOKENS)
    assert can_decode(model)
    runner = runner_of(model, 0)
    torch.testing.assert_close(run(runner, TABLE, 0, TOKENS), expected, rtol=1e-4, atol=1e-4)
    # Its own parameters are views of the fused ones now: still the same model.
    assert torch.equal(reference(model, TOKENS), expected)


def test_a_row_has_the_same_bits_whole_in_chunks_as_a_decode_and_in_company() -> None:
    model = tiny(LlamaForCausalLM, LlamaConfig, 2)
    runner = runner_of(model)
    whole = run(runner, TABLE, 0, TOKENS)
    assert torch.equal(run(runner, OTHER, 0, TOKENS[:5]), whole[:5])
    assert torch.equal(run(runner, OTHER, 5, TOKENS[5:9]), whole[5:9])
    # Through a graph of one row, then of two.
    assert torch.equal(run(runner, OTHER, 9, TOKENS[9:10]), whole[9:10])
    decodes = [Segment([4], 0, 1), Segment(OTHER, 10, 1)]
    two = runner.forward(batch_of([5, TOKENS[10]], decodes, [0, 1]))
    assert torch.equal(two[1], whole[10])
    # A decode beside a chunk runs kernel by kernel.
    mixed = [Segment([0, 4], 0, 6), Segment(OTHER, 10, 1)]
    together = runner.forward(batch_of([*range(6), TOKENS[10]], mixed, [5, 6]))
    assert torch.equal(together[1], whole[10])


@pytest.mark.parametrize("graphs", [0, 2])
def test_a_row_takes_the_token_that_the_step_before_has_chosen(graphs: int) -> None:
    """From where it lies, in a decode step and beside a chunk; others keep their own."""
    runner = runner_of(tiny(LlamaForCausalLM, LlamaConfig), graphs)
    for table in (TABLE, OTHER):
        run(runner, table, 0, TOKENS[:3])
    whole = run(runner, TABLE, 3, TOKENS[3:5])
    chosen = torch.tensor([9, TOKENS[4], TOKENS[3]])
    decodes = [Segment([4], 0, 1), Segment(OTHER, 3, 1)]
    batch = batch_of([TOKENS[0], 0], decodes, [0, 1])
    late = replace(batch, sources=np.array([-1, 2], dtype=np.int32), chosen=chosen)
    alone = runner.forward(batch_of(TOKENS[:1], decodes[:1], [0]))
    got = runner.forward(late)
    assert torch.equal(got[0], alone[0])
    assert torch.equal(got[1], whole[0])
    mixed = batch_of([1, 2, 0], [Segment([4], 0, 2), Segment(OTHER, 4, 1)], [1, 2])
    sources = np.array([-1, -1, 1], dtype=np.int32)
    beside = runner.forward(replace(mixed, sources=sources, chosen=chosen))
    assert torch.equal(beside[1], whole[1])
    with pytest.raises(ValueError, match="has not been computed"):
        runner.forward(replace(mixed, sources=sources))


def test_rows_of_padding_leave_other_blocks_alone() -> None:
    runner = runner_of(tiny(LlamaForCausalLM, LlamaConfig), 4)
    run(runner, TABLE, 0, TOKENS[:3])
    before = runner.pool.data.clone()
    decodes = [Segment(TABLE, 3, 1), Segment([4], 0, 1), Segment([2], 0, 1)]
    runner.forward(batch_of([1, 2, 3], decodes, [0, 1, 2]))  # a graph of four rows
    changed = (runner.pool.data.nan_to_num(7.0) != before.nan_to_num(7.0)).flatten(3).any(3)
    slots = {tuple(slot) for slot in changed[0].nonzero().tolist()}
    assert slots - {(runner.pool.null_block, 0)} == {(TABLE[0], 3), (4, 0), (2, 0)}


def test_models_of_other_parts_are_told_apart() -> None:
    yarn = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert not can_decode(tiny(LlamaForCausalLM, LlamaConfig, rope_parameters=yarn))
    assert not can_decode(tiny(LlamaForCausalLM, LlamaConfig, hidden_act="gelu"))
    half = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    assert not can_decode(tiny(LlamaForCausalLM, LlamaConfig, rope_parameters=half))


def test_orders_name_every_shape_once() -> None:
    runner = runner_of(tiny(LlamaForCausalLM, LlamaConfig, 2), 0)
    assert sorted(runner._decoder.orders) == [(48, 64), (64, 32), (64, 64)]


@pytest.mark.parametrize(
    ("start", "token", "words"),
    [
        (32, 0, "positions are from 0 to 31"),
        (31, VOCAB, "token ids are from 0 to 47"),
        (31, -1, "token ids are from 0 to 47"),
    ],
)
@pytest.mark.parametrize("graphs", [0, 2])
def test_what_the_kernels_would_look_up_beyond_a_table_is_refused(
    graphs: int, start: int, token: int, words: str
) -> None:
    """A GPU reads beyond a table without a word, or stops all that runs on it."""
    runner = runner_of(tiny(LlamaForCausalLM, LlamaConfig), graphs)
    table = [0, 1, 2, 3, 4, 5, 6, 7, 0]
    with pytest.raises(IndexError, match=words):
        run(runner, table, start, [token])


def test_the_start_up_check_fits_a_runner_for_short_sequences() -> None:
    longest = 3
    model = tiny(LlamaForCausalLM, LlamaConfig)
    decoder = Decoder(model, longest)
    shape = KVShape(1, KV_HEADS, HEAD_DIM, model.dtype)
    with patch.object(self_check, "COMPANY", (2, 3)):
        check_same_bits(
            lambda pool: CudaRunner(decoder, pool, 2, longest),
            shape,
            torch.device("cpu"),
            VOCAB,
            4,
            longest,
        )


@pytest.mark.parametrize("unfit", [float("nan"), float("inf")])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy, in the interpreter
def test_values_that_are_no_numbers_reach_no_earlier_row(unfit: float) -> None:
    """Their weight is 0 there, and 0 times infinity is no number either."""
    model = tiny(LlamaForCausalLM, LlamaConfig)
    runner = runner_of(model)
    whole = run(runner, TABLE, 0, TOKENS[:6])
    runner._decoder._embeddings[TOKENS[4], 0] = unfit
    spoilt = run(runner, TABLE, 0, TOKENS[:6])
    assert torch.equal(spoilt[:4], whole[:4])
    # Those that see it must not answer as if nothing were.
    assert not bool(spoilt[4:].isfinite().any())
    assert not bool(run(runner, TABLE, 5, TOKENS[5:6]).isfinite().any())
