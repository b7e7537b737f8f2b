"""Backends for a GPU on the interpreter's device: other models' code over the same kernels."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM, PreTrainedModel
from triton.runtime.errors import OutOfResources
from triton.runtime.interpreter import GridExecutor

from engine import backend as backends
from engine.attention import triton_paged
from engine.attention.plan import Segment
from engine.backend import Limits, TorchBackend, TritonUnavailable, choose_backend
from engine.batch import batch_of
from engine.cuda import backend as cuda_backend
from engine.cuda import draw, gemm, layers, linear, upload
from engine.cuda.backend import DecoderBackend, TiledBackend
from engine.cuda.decoder import can_decode
from engine.cuda.linear import TiledLinear, make_tiled
from engine.kv_pool import KVPool, KVShape
from engine.linear import InvariantLinear, NotInvariant
from engine.logits import SampleRow
from engine.request import InvalidParam, SamplingParams
from experiments.gpu.models import TINY, random_model

pytestmark = pytest.mark.usefixtures("matrix_units")
CPU = torch.device("cpu")
TOKENS = [(i * 37 + 11) % 48 for i in range(7)]
TABLE, OTHER = [7, 3], [1, 2]
ENGINE = Path(cuda_backend.__file__).parents[1]
USABLE = gemm.usable_tiles


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
    backend = TiledBackend(model, 64, 4)
    runner = backend.runner(KVPool(KVShape(1, 1, 16, model.dtype), 8, 4, CPU))
    whole = runner.forward(batch_of(TOKENS, [Segment(TABLE, 0, 7)], range(7)))
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)
    runner.forward(batch_of(TOKENS[:6], [Segment(OTHER, 0, 6)], [5]))
    parts = [Segment([4], 0, 2), Segment(OTHER, 6, 1)]
    mixed = runner.forward(batch_of([1, 2, TOKENS[6]], parts, [1, 2]))
    assert torch.equal(mixed[1], whole[6])


def test_values_of_other_models_that_are_no_numbers_reach_no_earlier_row() -> None:
    model = phi()
    backend = TiledBackend(model, 64, 4)
    whole = logits_of(backend)
    model.get_input_embeddings().weight.data[TOKENS[4], 0] = float("inf")
    spoilt = logits_of(backend)
    assert torch.equal(spoilt[:4], whole[:4])
    assert not bool(spoilt[4:].isfinite().any())


def test_identities_tell_ways_and_shapes_apart() -> None:
    decoder = DecoderBackend(random_model(TINY, torch.float32, CPU, 64), 2, 64, 16)
    tiled = TiledBackend(random_model(TINY, torch.float32, CPU, 64), 64, 16)
    assert decoder.identity() != tiled.identity()
    assert repr(decoder.identity()) == repr(
        DecoderBackend(random_model(TINY, torch.float32, CPU, 64), 4, 32, 16).identity()
    )


def test_identities_tell_kernels_of_other_releases_apart(tmp_path: Path) -> None:
    """While replicas are replaced by new ones, a stream must not go on over other kernels."""
    backend = DecoderBackend(random_model(TINY, torch.float32, CPU, 64), 2, 64, 16)
    before = repr(backend.identity())
    for folder in ("cuda", "attention"):
        copy = shutil.copytree(ENGINE / folder, tmp_path / folder)
        kernels = copy / {"cuda": "kernels/gemm.py", "attention": "triton_kernel.py"}[folder]
        kernels.write_text(kernels.read_text() + "# another order")
        other = "attention" if folder == "cuda" else "cuda"
        with patch.object(cuda_backend, "_SOURCES", (copy, ENGINE / other)):
            assert repr(backend.identity()) != before


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


LIMITS = Limits(block_tokens=4, max_num_seqs=2, max_model_len=64, threads=1)


class Fails:
    """A kernel that cannot be launched."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getitem__(self, grid: object) -> Any:
        raise self._error


TOO_LARGE = OutOfResources(131_072, 101_376, "shared memory")
NO_COMPILER = RuntimeError("Failed to find C compiler")


def logits_of(backend: backends.Backend) -> torch.Tensor:
    runner = backend.runner(KVPool(KVShape(1, 1, 16, torch.float32), 8, 4, CPU))
    return runner.forward(batch_of(TOKENS, [Segment(TABLE, 0, 7)], range(7)))


def expected_of(model: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([TOKENS])).logits[0]
    return logits


def small() -> PreTrainedModel:
    return random_model(TINY, torch.float32, CPU, 64)


def test_a_kernel_of_the_decoder_that_cannot_run_leaves_transformers_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Other models need fewer kernels: what fails of the decoder's need not end the start."""
    model = small()
    expected = expected_of(model)
    assert isinstance(backends._with_triton(small(), LIMITS), DecoderBackend)
    with patch.object(layers, "add_rms_norm", Fails(TOO_LARGE)):
        backend = backends._with_triton(model, LIMITS)
    assert isinstance(backend, TiledBackend)
    assert "OutOfResources: out of resource: shared memory" in caplog.text
    torch.testing.assert_close(logits_of(backend), expected, rtol=1e-4, atol=1e-4)


def test_a_decoder_whose_products_vary_leaves_transformers_code_and_the_librarys() -> None:
    model = small()
    expected = expected_of(model)
    with patch.object(gemm, "usable_tiles", side_effect=NotInvariant("a product")):
        backend = backends._with_triton(model, LIMITS)
    assert isinstance(backend, TiledBackend)
    torch.testing.assert_close(logits_of(backend), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("module", "kernel"),
    [(triton_paged, "attend"), (gemm, "gemm"), (draw, "draw")],
    ids=["attend", "gemm", "draw"],
)
def test_kernels_that_cannot_run_leave_the_model_to_torch(module: Any, kernel: str) -> None:
    """No compiler for Triton's launcher, or a GPU that is too small, ended the start."""
    model = small()
    expected = expected_of(model)
    with (
        patch.object(module, kernel, Fails(NO_COMPILER)),
        patch.object(gemm, "usable_tiles", wraps=USABLE),
        pytest.raises(TritonUnavailable, match=r"launch failed: RuntimeError: Failed to find C"),
    ):
        backends._with_triton(model, LIMITS)
    torch.testing.assert_close(logits_of(TorchBackend(model, 1)), expected, rtol=1e-4, atol=1e-4)


def test_who_asks_for_kernels_that_cannot_run_is_told_why() -> None:
    with (
        patch.object(backends, "_require_gpu", lambda model: None),
        patch.object(triton_paged, "attend", Fails(NO_COMPILER)),
        pytest.raises(InvalidParam, match=r"^kernels must be torch or auto here: a first launch"),
    ):
        choose_backend("triton", small(), LIMITS)


def test_memory_that_runs_out_is_no_reason_for_slower_kernels() -> None:
    with (
        patch.object(triton_paged, "attend", Fails(torch.OutOfMemoryError("full"))),
        pytest.raises(torch.OutOfMemoryError),
    ):
        backends._with_triton(small(), LIMITS)


@pytest.mark.parametrize("make", [small, phi], ids=["decoder", "tiled"])
def test_every_launch_is_on_the_models_device(make: Any) -> None:
    """Triton launches on the thread's own device, which is the first GPU unless told otherwise."""
    depth, launches = 0, 0

    class Current:
        """Stands in for making a device the thread's own."""

        def __enter__(self) -> None:
            nonlocal depth
            depth += 1

        def __exit__(self, *error: object) -> None:
            nonlocal depth
            depth -= 1

    launch = GridExecutor.__call__

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal launches
        launches += 1
        assert depth, "a launch on whichever device is the thread's own"
        return launch(*args, **options)

    with (
        patch.object(upload, "nullcontext", Current),
        patch.object(GridExecutor, "__call__", counted),
        patch.object(gemm, "usable_tiles", wraps=USABLE),
    ):
        backend = backends._with_triton(make(), LIMITS)
        made = launches
        logits = logits_of(backend)
        assert launches > made > 0
        made = launches
        backend.sampler(48).sample(logits[:1], [SampleRow(SamplingParams(), 0, [1], [])])
        assert launches > made


def test_a_model_is_swapped_whole_or_not_at_all() -> None:
    """torch's kernels find only layers that are still transformers' own."""
    model = torch.nn.Sequential(torch.nn.Linear(32, 8), torch.nn.Linear(8, 4))
    tiles = gemm._tiles(8, torch.float32)
    with (
        patch.object(gemm, "usable_tiles", side_effect=[tiles, NO_COMPILER]),
        pytest.raises(RuntimeError),
    ):
        make_tiled(model)
    assert [type(layer) for layer in model] == [torch.nn.Linear] * 2
