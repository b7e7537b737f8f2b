"""Launches of the small kernels between a decoder layer's matrix products.

A kernel is compiled once for each number of segments that it adds up, and that number may
differ between a prefill and a decode: a compiler that joins a product and a sum into one
instruction, which rounds once, may do so in one and not in the other.  So none may.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.triton_paged import HeadShape, TileStep
from engine.cuda.gemm import Parts
from engine.cuda.kernels.layers import add_rms_norm, rotate_and_store, silu_times

_SILU_WIDTH = 1024


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMSNorm.

    Attributes:
        weight: [n].
        epsilon: added to the mean square.
    """

    weight: Tensor
    epsilon: float


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary position embeddings, tabulated.

    Attributes:
        cosines, sines: float32 [positions, dim / 2].
    """

    cosines: Tensor
    sines: Tensor


def normed(norm: Norm, residual: Tensor, product: Parts | None) -> Tensor:
    """Add a product to the residual [rows, n], in place, and return its norm [rows, n]."""
    rows, n = residual.shape
    out = torch.empty_like(residual)
    add_rms_norm[(rows,)](
        residual if product is None else product.data,
        residual,
        norm.weight,
        out,
        norm.epsilon,
        rows * n,
        n,
        PARTS=1 if product is None else product.count,
        ADDS=product is not None,
        WIDTH=1 << (n - 1).bit_length(),
        num_warps=8 if n > 2048 else 4,
        enable_fp_fusion=False,
    )
    return out


def rotated(
    product: Parts,
    norms: tuple[Norm, Norm] | None,
    rotary: Rotary,
    shape: HeadShape,
    pool: Tensor,
    step: TileStep,
    dtype: torch.dtype,
) -> Tensor:
    """Split a product of q, k and v; store k and v in the pool and return q.

    Args:
        product: [rows, (heads + 2 kv_heads) * dim].
        norms: of each head of q and of k, if the model has them.
        rotary: tables that reach the rows' positions.
        shape: the model's heads.
        pool: one layer's, [blocks, block_tokens, 2, kv_heads, dim].
        step: the step's rows.
        dtype: the model's.

    Returns:
        [rows, heads, dim].
    """
    rows = len(step.positions)
    q = torch.empty(rows, shape.heads, shape.dim, dtype=dtype, device=pool.device)
    q_norm, k_norm = norms or (Norm(rotary.cosines, 0.0), Norm(rotary.cosines, 0.0))
    rotate_and_store[(rows, shape.heads + 2 * shape.kv_heads)](
        product.data,
        q_norm.weight,
        k_norm.weight,
        rotary.cosines,
        rotary.sines,
        step.positions,
        step.row_tables,
        step.tables,
        q,
        pool,
        q_norm.epsilon,
        rows * (shape.heads + 2 * shape.kv_heads) * shape.dim,
        step.tables.stride(0),
        pool.stride(0),
        pool.stride(1),
        pool.stride(3),
        pool.stride(2),
        PARTS=product.count,
        HEADS=shape.heads,
        KV_HEADS=shape.kv_heads,
        DIM=shape.dim,
        HALF_WIDTH=1 << (shape.dim // 2 - 1).bit_length(),
        BLOCK_TOKENS=pool.shape[1],
        NORMED=norms is not None,
        num_warps=1,
        enable_fp_fusion=False,
    )
    return q


def gated(product: Parts, dtype: torch.dtype) -> Tensor:
    """silu(gate) * up of a product [rows, 2 n] whose first half is the gate: [rows, n]."""
    rows, both = product.data.shape[-2:]
    n = both // 2
    out = torch.empty(rows, n, dtype=dtype, device=product.data.device)
    silu_times[(rows, -(-n // _SILU_WIDTH))](
        product.data,
        out,
        rows * both,
        n,
        PARTS=product.count,
        WIDTH=_SILU_WIDTH,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return out
