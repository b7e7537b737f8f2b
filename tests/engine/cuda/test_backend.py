"""Backends for a GPU on the interpreter's device: other models' code over the same kernels."""

import logging
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM, PreTrainedModel

from engine.attention.plan import Segment
from engine.batch import batch_of
from engine.cuda import gemm, linear
from engine.cuda.backend import DecoderBackend, TiledBackend
from engine.cuda.decoder import can_decode
from engine.cuda.linear import TiledLinear, make_tiled
from engine.kv_pool import KVPool, KVShape
from engine.linear import InvariantLinear, NotInvariant
from experiments.gpu.models import TINY, random_model

pytestmark = pytest.mark.usefixtures("matrix_units")
CPU = torch.device("cpu")
TOKENS = [(i * 37 + 11) % 48 for i in range(7)]
TABLE, OTHER = [7, 3], [1, 2]


@pytest.fixture(autouse=True)
def _few_tries() -> Iterator[None]:
    with patch.object(gemm, "usable_tiles", lambda n, k, like: gemm._tiles(n, like.dtype)):
        yield


def phi() -> PreTrainedModel:
    torch.manual_seed(0)
    config = Phi3Config(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    model: PreTrainedModel = Phi3ForCausalLM(config).eval()
    return model


def test_other_models_keep_their_code_and_their_bits() -> None:
    model = phi()
    assert not can_decode(model)
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([TOKENS])).logits[0]
    backend = TiledBackend(model)
    runner = backend.runner(KVPool(KVShape(1, 1, 16, model.dtype), 8, 4, CPU))
    whole = runner.forward(batch_of(TOKENS, [Segment(TABLE, 0, 7)], range(7)))
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)
    runner.forward(batch_of(TOKENS[:6], [Segment(OTHER, 0, 6)], [5]))
    parts = [Segment([4], 0, 2), Segment(OTHER, 6, 1)]
    mixed = runner.forward(batch_of([1, 2, TOKENS[6]], parts, [1, 2]))
    assert torch.equal(mixed[1], whole[6])


def test_identities_tell_ways_and_shapes_apart() -> None:
    decoder = DecoderBackend(random_model(TINY, torch.float32, CPU, 64), 2, 64)
    tiled = TiledBackend(random_model(TINY, torch.float32, CPU, 64))
    assert decoder.identity() != tiled.identity()
    assert repr(decoder.identity()) == repr(
        DecoderBackend(random_model(TINY, torch.float32, CPU, 64), 4, 32).identity()
    )


def test_what_triton_cannot_keep_the_library_may(caplog: pytest.LogCaptureFixture) -> None:
    def varies(n: int, k: int, like: Any) -> Any:
        raise NotInvariant(f"a weight [{n}, {k}]")

    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 3, bias=False))
    x = torch.randn(5, 8)
    expected = model(x)
    with (
        patch.object(gemm, "usable_tiles", varies),
        patch.object(linear, "find_tiling", wraps=linear.find_tiling) as library,
        caplog.at_level(logging.WARNING),
    ):
        ways = make_tiled(model)
    assert [type(layer) for layer in model] == [InvariantLinear] * 2
    assert library.call_count == 2
    assert "a weight [4, 8]" in caplog.text
    assert list(ways) == [(4, 8, True), (3, 4, False)]
    torch.testing.assert_close(model(x), expected)


def test_linear_layers_are_swapped_in_place() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 8), torch.nn.Linear(8, 8))
    x = torch.randn(2, 3, 32)
    expected = model(x)
    assert list(make_tiled(model)) == [(8, 32, True), (8, 8, True)]
    assert [type(layer) for layer in model] == [TiledLinear] * 2
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)
