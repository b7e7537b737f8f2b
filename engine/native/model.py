"""NativeModel: a transformers causal LM of the Llama kind, in the kernels' own layout."""

import ctypes
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.families import head_dim, unlike
from engine.kv_pool import KVShape
from engine.native.library import Draw, Element, Library, NativeUnavailable, Shape

_MOST_DIM = 256
PANEL_TOKENS: Final = 16
"""Tokens that the pool keeps together: a block is one or more times so many."""

Numbers: TypeAlias = np.ndarray[tuple[int], np.dtype[Any]]

# The names that kernels.cpp numbers.
_LINEARS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "self_attn.q_norm",
    "self_attn.k_norm",
)


def require_supported(model: PreTrainedModel, block_tokens: int) -> None:
    """Find out whether the kernels compute what ``model`` does.

    Raises:
        NativeUnavailable: they do not; with what is lacking.
    """
    config = model.config
    dim, otherwise = head_dim(model), unlike(model)
    if otherwise is not None:
        raise NativeUnavailable(otherwise)
    needs = (
        (model.dtype in (torch.bfloat16, torch.float32), f"the weights are {model.dtype}"),
        (model.device.type == "cpu", f"the weights are on {model.device}"),
        (dim % 16 == 0 and dim <= _MOST_DIM, f"a head has {dim} elements"),
        (config.hidden_size % 2 == 0, f"hidden_size is {config.hidden_size}, which is odd"),
        (config.intermediate_size % 2 == 0, f"intermediate_size is {config.intermediate_size}"),
        (block_tokens % PANEL_TOKENS == 0, f"block_tokens is {block_tokens}"),
    )
    for holds, otherwise in needs:
        if not holds:
            raise NativeUnavailable(otherwise)


class NativeModel:
    """The weights, packed, with the threads that compute with them.

    Not for two callers at once. Freed with the object.

    Attributes:
        dtype: of the weights and of K and V.
        vocab: number of token ids.
        shape: of K and V.
        block_tokens: of the pools.
        positions: how many positions there are angles for.
        width: elements of a row of hidden states.
        element: what it computes with.
    """

    def __init__(
        self,
        library: Library,
        model: PreTrainedModel,
        block_tokens: int,
        threads: int,
        matrix_unit: bool = True,
    ) -> None:
        """Copy the weights of ``model``, which is not needed any more afterwards.

        Args:
            library: what computes.
            model: of bfloat16 or float32.
            block_tokens: of the pools.
            threads: that compute.
            matrix_unit: multiply bfloat16 by the processor's matrix unit, if it has one.

        Raises:
            NativeUnavailable: the model is of another kind, or memory ran out.
        """
        require_supported(model, block_tokens)
        self._library = library
        self.dtype = model.dtype
        self.vocab = model.config.vocab_size
        self.block_tokens = block_tokens
        self.shape = KVShape(
            model.config.num_hidden_layers,
            model.config.num_key_value_heads,
            head_dim(model),
            self.dtype,
        )
        self.positions = model.config.max_position_embeddings
        self.width = model.config.hidden_size
        shape = _shape(model, block_tokens)
        self.element = Element.FLOAT32
        if self.dtype == torch.bfloat16:
            by_matrix = matrix_unit and library.matrix_unit
            self.element = Element.MATRIX_BFLOAT16 if by_matrix else Element.BFLOAT16
        self._handle = library.calls.tidegate_decoder(ctypes.byref(shape), self.element, threads)
        if self._handle is None:
            raise NativeUnavailable("memory ran out")
        # Not at the interpreter's end: another thread may still be computing with it.
        weakref.finalize(self, library.calls.tidegate_free, self._handle).atexit = False
        body: Any = model.base_model  # torch's stubs know nothing of a model's own attributes
        for number, layer in enumerate(body.layers):
            for part, weight, bias in _parts(layer):
                self._set(number, part, weight, bias)
        self._set_ends(model)

    @property
    def digest(self) -> str:
        """Of all that decides what the kernels' results are, but the weights."""
        return f"{self._library.digest} {self.element.name}"

    def hidden(self, pool: int, layer_bytes: int, step: ctypes.Structure, out: Tensor) -> None:
        """Compute a step into ``out`` [rows, width], K and V into the pool at an address."""
        done = self._library.calls.tidegate_hidden(
            self._handle, pool, layer_bytes, ctypes.byref(step), out.data_ptr()
        )
        if not done:
            raise MemoryError("a step's activations do not fit in memory")

    def logits(self, hidden: Tensor, rows: Tensor, out: Tensor) -> None:
        """Write to ``out`` [len(rows), vocab] the logits of int32 ``rows`` of hidden states."""
        done = self._library.calls.tidegate_logits(
            self._handle, hidden.data_ptr(), rows.data_ptr(), len(rows), out.data_ptr()
        )
        if not done:
            raise MemoryError("a step's logits do not fit in memory")

    def largest(self, logits: Tensor) -> tuple[Numbers, Numbers]:
        """Of each row of float32 logits [rows, vocab] the largest, and its first token.

        The largest is nan, and the token of no use, where a row holds nan.
        """
        count, vocab = logits.shape
        logits = logits.contiguous()
        values, tokens = np.empty(count, np.float32), np.empty(count, np.int32)
        self._library.calls.tidegate_largest(
            self._handle, logits.data_ptr(), count, vocab, values.ctypes.data, tokens.ctypes.data
        )
        return values, tokens

    def candidates(self, draws: Sequence[Draw], vocab: int, room: int) -> tuple[Numbers, Numbers]:
        """Find the tokens that could win some draws.

        Args:
            draws: each of a row [vocab] whose largest logit is finite.
            vocab: number of token ids.
            room: how many tokens are expected at most.

        Returns:
            How many there are for each draw, and the tokens, draw after draw, ascending.
        """
        given = (Draw * len(draws))(*draws)
        counts = np.empty(len(draws), np.int32)
        while True:
            tokens = np.empty(room, np.int32)
            total = self._library.calls.tidegate_candidates(
                self._handle,
                given,
                len(draws),
                vocab,
                counts.ctypes.data,
                tokens.ctypes.data,
                room,
            )
            if total < 0:
                raise MemoryError("a step's candidates do not fit in memory")
            if total <= room:
                return counts, tokens[:total]
            room = total

    def _set(self, layer: int, part: int, weight: Tensor, bias: Tensor | None) -> None:
        done = self._library.calls.tidegate_set(
            self._handle, layer, part, weight.data_ptr(), None if bias is None else bias.data_ptr()
        )
        if not done:
            raise NativeUnavailable("memory ran out")

    def _set_ends(self, model: PreTrainedModel) -> None:
        whole: Any = model
        head, body = whole.get_output_embeddings(), whole.base_model
        weight = head.weight.detach().contiguous()
        bias = None if head.bias is None else head.bias.detach().float().contiguous()
        embedding = whole.get_input_embeddings().weight.detach().contiguous()
        norm = body.norm.weight.detach().float().contiguous()
        cos, sin = _angles(model, self.positions)
        done = self._library.calls.tidegate_set_ends(
            self._handle,
            embedding.data_ptr(),
            weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            norm.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
        )
        if not done:
            raise NativeUnavailable("memory ran out")


def _shape(model: PreTrainedModel, block_tokens: int) -> Shape:
    config, dim = model.config, head_dim(model)
    body: Any = model.base_model
    attention = body.layers[0].self_attn
    return Shape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        query_heads=config.num_attention_heads,
        heads=config.num_key_value_heads,
        dim=dim,
        vocab=config.vocab_size,
        positions=config.max_position_embeddings,
        block_tokens=block_tokens,
        head_norms=hasattr(attention, "q_norm"),
        eps=config.rms_norm_eps,
        scale=attention.scaling,
    )


def _parts(layer: nn.Module) -> Iterator[tuple[int, Tensor, Tensor | None]]:
    """Number, weight and bias of each tensor of a layer, as the library takes them."""
    for part, name in enumerate(_LINEARS):
        linear: Any = layer.get_submodule(name)
        bias = linear.bias
        yield (
            part,
            linear.weight.detach().contiguous(),
            None if bias is None else bias.detach().float().contiguous(),
        )
    for part, name in enumerate(_NORMS, start=len(_LINEARS)):
        parent, _, own = name.rpartition(".")
        if hasattr(layer.get_submodule(parent), own):
            norm: Any = layer.get_submodule(name)
            yield part, norm.weight.detach().float().contiguous(), None


def _angles(model: PreTrainedModel, positions: int) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, dim / 2] in float32, as the model's own rotary embedding has them.

    All positions at once, so that no length given elsewhere can change them.
    """
    body: Any = model.base_model
    order = torch.arange(positions)[None]
    cos, sin = body.rotary_emb(torch.empty(0, dtype=torch.float32), order)
    half = cos.shape[-1] // 2
    return cos[0, :, :half].float().contiguous(), sin[0, :, :half].float().contiguous()
