"""Decoder: the body of a Llama-like model in a few launches a layer.

Nine launches: two norms that also add to the residual, four matrix products, the rotation
that also stores K and V, attention, and the gate.  Every one of them computes a row from
that row alone.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.attention.triton_paged import HeadShape, TileStep, TritonAttention
from engine.cuda.gemm import Gemms, InvariantGemm, Order, Parts
from engine.cuda.layers import Norm, Rotary, gated, normed, rotated
from engine.families import unlike


@dataclass(frozen=True, slots=True)
class _Layer:
    before: Norm
    qkv: InvariantGemm
    heads: tuple[Norm, Norm] | None
    output: InvariantGemm
    between: Norm
    gate_up: InvariantGemm
    down: InvariantGemm


def can_decode(model: PreTrainedModel) -> bool:
    """Whether a :class:`Decoder` computes what this model computes."""
    return unlike(model) is None


class Decoder:
    """A model's body and head over weights that are fused where they read the same input.

    The model's own parameters become views of the fused ones, so that they take no memory.

    Args:
        model: of a family for which :func:`can_decode` holds; its weights are on the device.
        positions: no sequence gets longer than this many tokens.

    Attributes:
        shape: the model's heads.
        dtype: of weights, K and V.
        vocab: number of token ids.
        positions: how many positions there are angles for.
        orders: for each shape of a weight the order of its products.

    Raises:
        NotInvariant: the device's matrix units do not keep a row's bits.
    """

    def __init__(self, model: PreTrainedModel, positions: int) -> None:
        config: Any = model.config
        body: Any = model.base_model
        head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        first = body.layers[0].self_attn
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.shape = HeadShape.of(heads, kv_heads, int(first.head_dim))
        self.dtype = model.dtype
        self.vocab = int(config.vocab_size)
        self.positions = positions
        self._scale = float(first.scaling)
        self._embeddings: Tensor = body.embed_tokens.weight.detach()
        gemms = Gemms()
        self._layers = [_layer_of(layer, gemms) for layer in body.layers]
        self._norm = _norm_of(body.norm)
        self._rotary = _rotary_of(body.rotary_emb, positions, self._embeddings.device)
        self._head = gemms.of(head.weight.detach(), None)
        self.orders: dict[tuple[int, int], Order] = gemms.orders

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._embeddings.device

    def hidden(
        self, tokens: Tensor, step: TileStep, attention: TritonAttention, pool: Tensor
    ) -> Tensor:
        """Compute the rows' K and V and return their hidden states.

        Args:
            tokens: int32 [rows].
            step: the rows' places.
            attention: over ``pool``.
            pool: [layers, blocks, block_tokens, 2, kv_heads, dim].

        Returns:
            [rows, width], normed.
        """
        residual = torch.nn.functional.embedding(tokens, self._embeddings)
        product: Parts | None = None
        for number, layer in enumerate(self._layers):
            qkv = layer.qkv.parts(normed(layer.before, residual, product))
            q = rotated(qkv, layer.heads, self._rotary, self.shape, pool[number], step, self.dtype)
            attended = attention.run(number, q, step, self._scale)
            product = layer.output.parts(attended.flatten(1))
            gate_up = layer.gate_up.parts(normed(layer.between, residual, product))
            product = layer.down.parts(gated(gate_up, self.dtype))
        return normed(self._norm, residual, product)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, width] to [rows, vocab], float32."""
        return self._head(hidden).float()


def _layer_of(layer: nn.Module, gemms: Gemms) -> _Layer:
    attention: Any = layer.self_attn
    mlp: Any = layer.mlp
    heads = None
    if hasattr(attention, "q_norm"):
        heads = _norm_of(attention.q_norm), _norm_of(attention.k_norm)
    return _Layer(
        before=_norm_of(layer.input_layernorm),
        qkv=_fused(gemms, attention.q_proj, attention.k_proj, attention.v_proj),
        heads=heads,
        output=_fused(gemms, attention.o_proj),
        between=_norm_of(layer.post_attention_layernorm),
        gate_up=_fused(gemms, mlp.gate_proj, mlp.up_proj),
        down=_fused(gemms, mlp.down_proj),
    )


def _norm_of(norm: Any) -> Norm:
    return Norm(norm.weight.detach(), float(norm.variance_epsilon))


def _fused(gemms: Gemms, *linears: Any) -> InvariantGemm:
    """One product for linears of one input; their weights become views of its weight."""
    weight = linears[0].weight.detach()
    bias = None if linears[0].bias is None else linears[0].bias.detach()
    if len(linears) > 1:
        weight = torch.cat([linear.weight.detach() for linear in linears])
        begin = 0
        for linear in linears:
            end = begin + linear.out_features
            linear.weight.data = weight[begin:end]
            begin = end
        if bias is not None:
            bias = torch.cat([linear.bias.detach() for linear in linears])
    return gemms.of(weight, bias)


def _rotary_of(rotary: nn.Module, positions: int, device: torch.device) -> Rotary:
    """Tabulate the model's own angles."""
    like = torch.empty(0, device=device)
    cosines, sines = rotary(like, torch.arange(positions, device=device)[None])
    half = cosines.shape[-1] // 2
    return Rotary(cosines[0, :, :half].contiguous(), sines[0, :, :half].contiguous())
