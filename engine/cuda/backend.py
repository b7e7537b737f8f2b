"""Backends for a GPU: a model with kernels of its own, or transformers' code over them."""

import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from engine.attention.triton_paged import HeadShape
from engine.cuda.decoder import Decoder
from engine.cuda.linear import make_tiled
from engine.cuda.runner import CudaRunner
from engine.cuda.sampling import CudaSampler
from engine.cuda.tiled import TiledAttention
from engine.cuda.trial import try_attention, try_decoder, try_draw
from engine.cuda.upload import current
from engine.families import head_dim
from engine.kv_pool import KVPool
from engine.runner import ModelRunner

_SOURCES = (Path(__file__).parent, Path(__file__).parents[1] / "attention")


class DecoderBackend:
    """Llama-like models: a few launches a layer, decodes as CUDA graphs."""

    name = "triton"

    def __init__(
        self, model: PreTrainedModel, max_num_seqs: int, max_model_len: int, block_tokens: int
    ) -> None:
        """Take ``model`` over; :func:`engine.cuda.decoder.can_decode` must hold for it.

        If that fails, ``model`` is as good as before.

        Raises:
            NotInvariant: the GPU's matrix units do not keep a row's bits.
            Exception: whatever Triton, its compilers or the driver object to.
        """
        self.dtype: torch.dtype = model.dtype
        self._limits = max_num_seqs, max_model_len
        with current(model.device):
            self._decoder = Decoder(model, max_model_len)
            layers: int = model.config.num_hidden_layers
            try_decoder(self._decoder, layers, block_tokens, max_model_len)
            try_draw(self._decoder.vocab, model.device)

    def runner(self, pool: KVPool) -> CudaRunner:
        """Return a runner over ``pool``, with its graphs recorded."""
        return CudaRunner(self._decoder, pool, *self._limits)

    def sampler(self, vocab: int) -> CudaSampler:
        """Return the one that chooses all rows' tokens at once."""
        return CudaSampler(vocab, self._decoder.device)

    def identity(self) -> object:
        """Return the versions, the kernels' sources, the GPU, and in which order sums are made."""
        orders = sorted(self._decoder.orders.items())
        return "decoder", _machine(self._decoder.device), orders


class TiledBackend:
    """Other models: transformers' code, with Triton's attention and products."""

    name = "triton"

    def __init__(self, model: PreTrainedModel, max_model_len: int, block_tokens: int) -> None:
        """Take ``model`` over.

        If that fails, ``model`` is as it was.

        Raises:
            NotInvariant: no way was found to keep a layer's bits.
            Exception: whatever Triton, its compilers or the driver object to.
        """
        self.dtype: torch.dtype = model.dtype
        self._model = model
        with current(model.device):
            heads = _heads_of(model)
            try_attention(heads, model.dtype, model.device, block_tokens, max_model_len)
            try_draw(model.config.vocab_size, model.device)
            self._ways = make_tiled(model)

    def runner(self, pool: KVPool) -> ModelRunner:
        """Return a runner over ``pool``."""
        heads: int = self._model.config.num_attention_heads
        return ModelRunner(self._model, pool, TiledAttention(pool, heads))

    def sampler(self, vocab: int) -> CudaSampler:
        """Return the one that chooses all rows' tokens at once."""
        return CudaSampler(vocab, self._model.device)

    def identity(self) -> object:
        """Return the versions, the kernels' sources, the GPU, and how products are computed."""
        return "tiled", _machine(self._model.device), sorted(self._ways.items())


def _heads_of(model: PreTrainedModel) -> HeadShape:
    config: Any = model.config
    heads: int = config.num_attention_heads
    kv_heads: int = getattr(config, "num_key_value_heads", None) or heads
    return HeadShape.of(heads, kv_heads, head_dim(model))


def _machine(device: torch.device) -> tuple[str, ...]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return torch.__version__, version("triton"), _digest(_SOURCES), name


def _digest(folders: Sequence[Path]) -> str:
    """Of the kernels and of how they are launched: another release may sum in another order."""
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    texts = (hashlib.sha256(file.read_bytes()).digest() for file in files)
    return hashlib.sha256(b"".join(texts)).hexdigest()[:16]
