"""TiledAttention: the Triton kernel as the attention of transformers' models."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from engine.attention.triton_paged import HeadShape, TileStep, TritonAttention
from engine.batch import Batch
from engine.cuda.layout import lay_out
from engine.cuda.upload import upload
from engine.kv_pool import KVPool


@dataclass(frozen=True, slots=True)
class TiledPlan:
    """One step's attention.

    Attributes:
        positions: int64 [rows].
        slots: int64 [rows], where each row's K and V are stored.
        step: its tiles.
    """

    positions: Tensor
    slots: Tensor
    step: TileStep


class TiledAttention:
    """Attention of all layers over one pool.

    Args:
        pool: on the device.
        query_heads: of the model.
    """

    def __init__(self, pool: KVPool, query_heads: int) -> None:
        shape = HeadShape.of(query_heads, pool.shape.kv_heads, pool.shape.head_dim)
        self._pool = pool
        self._attention = TritonAttention(shape, pool.data)

    def plan(self, batch: Batch) -> TiledPlan:
        """Lay a step out, without waiting for the device."""
        size = self._pool.block_tokens
        layout = lay_out(batch, self._attention.shape.tile_positions, size)
        blocks = layout.tables[layout.row_tables, layout.positions // size]
        slots = blocks.astype(np.int64) * size + layout.positions % size
        positions, places = upload((layout.positions.astype(np.int64), slots), self._pool.device)
        step = TileStep.of(layout, upload(layout.arrays(), self._pool.device))
        return TiledPlan(positions, places, step)

    def run(
        self, plan: TiledPlan, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float
    ) -> Tensor:
        """Store the rows' K and V, then attend.

        Where a value is not finite, 0 is stored, and nan for the key.

        Args:
            plan: the step's plan.
            layer: which layer's K and V.
            q: [rows, heads, d].
            k: [rows, kv_heads, d].
            v: [rows, kv_heads, d].
            scale: factor of the scores.

        Returns:
            [rows, heads, d] in q's dtype.
        """
        # The kernel multiplies values of later rows by 0: see rotate_and_store.
        finite = v.isfinite()
        k = k.where(finite.all(-1, keepdim=True), float("nan"))
        self._pool.write(layer, plan.slots, k, v.where(finite, 0.0))
        return self._attention.run(layer, q.contiguous(), plan.step, scale)
