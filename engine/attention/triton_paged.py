"""TritonAttention: paged attention on a GPU, with the same bits for a row in any batch.

Decodes and chunks run in one kernel with one tile shape.  A row's keys are walked from 0,
in splits of a fixed length that begin at fixed positions, and the splits are added from
the first on; whether one program does that, or several leave their splits for a second
kernel, decides only the speed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.plan import SPLIT
from engine.attention.triton_kernel import add_splits, attend
from engine.cuda.layout import StepLayout

TILE_ROWS = 32
"""Rows of a query tile: positions times query heads that share keys."""

BUSY = 256
"""Programs that keep a large GPU busy."""


@dataclass(frozen=True, slots=True)
class TileStep:
    """One step's tiles on the device: see :class:`engine.cuda.layout.StepLayout`.

    Attributes:
        positions, row_tables: int32 [rows].
        tile_rows, tile_lengths, tile_positions, tile_tables: int32 [tiles].
        tables: int32 [segments, blocks], maybe a part of a wider tensor.
        decodes: every tile has one row.
        most_keys: no row sees more keys.
    """

    positions: Tensor
    row_tables: Tensor
    tile_rows: Tensor
    tile_lengths: Tensor
    tile_positions: Tensor
    tile_tables: Tensor
    tables: Tensor
    decodes: bool
    most_keys: int

    @classmethod
    def of(cls, layout: StepLayout, arrays: Sequence[Tensor]) -> "TileStep":
        """A step from its layout and the layout's arrays on the device."""
        positions, row_tables, rows, lengths, tile_positions, tile_tables, tables = arrays
        return cls(
            positions=positions,
            row_tables=row_tables,
            tile_rows=rows,
            tile_lengths=lengths,
            tile_positions=tile_positions,
            tile_tables=tile_tables,
            tables=tables,
            decodes=bool((layout.tile_lengths == 1).all()),
            most_keys=int(layout.positions.max()) + 1,
        )


@dataclass(frozen=True, slots=True)
class HeadShape:
    """How query heads share a tile.

    Attributes:
        heads: query heads.
        kv_heads: key/value heads.
        dim: elements of a head.
        lanes: query heads of a group that share a tile, a power of two.
    """

    heads: int
    kv_heads: int
    dim: int
    lanes: int

    @classmethod
    def of(cls, heads: int, kv_heads: int, dim: int) -> "HeadShape":
        """Pack as many heads of a group into a tile as it takes."""
        return cls(heads, kv_heads, dim, min(TILE_ROWS, _power_of_two(heads // kv_heads)))

    @property
    def tile_positions(self) -> int:
        """Positions of a sequence that share a tile."""
        return TILE_ROWS // self.lanes

    @property
    def head_tiles(self) -> int:
        """Tiles that the heads of one position take."""
        return self.kv_heads * -(-(self.heads // self.kv_heads) // self.lanes)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


class TritonAttention:
    """Attention of all layers over one pool's tensors.

    Args:
        shape: the model's heads.
        pool: [layers, blocks, block_tokens, 2, kv_heads, dim].
    """

    def __init__(self, shape: HeadShape, pool: Tensor) -> None:
        self.shape = shape
        self._pool = pool
        self._block_tokens = pool.shape[2]
        self._width = max(16, _power_of_two(shape.dim))  # matrix units take no fewer

    def programs(self, step: TileStep) -> int:
        """How many programs share the splits of a tile: speed alone."""
        splits = -(-step.most_keys // SPLIT)
        wanted = BUSY // max(1, len(step.tile_rows) * self.shape.head_tiles)
        return max(1, min(splits, wanted)) if step.decodes else 1

    def run(self, layer: int, q: Tensor, step: TileStep, scale: float) -> Tensor:
        """Attend over K and V that are in the pool already, the rows' own too.

        A key may be any number or none, and shows in the rows that see it; a value must be
        finite, or it shows in other rows of its tile.

        Args:
            layer: which layer's K and V.
            q: [rows, heads, dim], contiguous.
            step: the step's tiles.
            scale: factor of the scores.

        Returns:
            [rows, heads, dim] in q's dtype.
        """
        programs = self.programs(step)
        out = torch.empty_like(q)
        most_splits = -(-step.most_keys // SPLIT)
        apart = (len(q), self.shape.heads, most_splits) if programs > 1 else (1, 1, 1)
        values = q.new_empty(*apart, self.shape.dim, dtype=torch.float32)
        weights = q.new_empty(*apart, 2, dtype=torch.float32)
        pool = self._pool[layer]
        large, exact = self._width > 128, q.dtype == torch.float32
        attend[(len(step.tile_rows), self.shape.head_tiles, programs)](
            q,
            pool,
            step.tables,
            step.tile_rows,
            step.tile_lengths,
            step.tile_positions,
            step.tile_tables,
            out,
            values,
            weights,
            # The weights are powers of two instead of e: one instruction each.
            scale * math.log2(math.e),
            step.tables.stride(0),
            pool.stride(0),
            pool.stride(1),
            pool.stride(3),
            pool.stride(2),
            most_splits,
            GROUP=self.shape.heads // self.shape.kv_heads,
            HEADS=self.shape.heads,
            KV_HEADS=self.shape.kv_heads,
            LANES=self.shape.lanes,
            ROWS=TILE_ROWS,
            # As many as the 99 KiB of shared memory of the smaller GPUs hold.
            KEYS=64 if not large else 16 if exact else 32,
            SPLIT=SPLIT,
            DIM=self.shape.dim,
            WIDTH=self._width,
            BLOCK_TOKENS=self._block_tokens,
            SHARED=programs > 1,
            PRECISION="ieee" if exact else "tf32",
            num_warps=8 if large else 4,
            num_stages=3,
            enable_fp_fusion=False,
        )
        if programs > 1:
            add_splits[(len(q), self.shape.heads)](
                values,
                weights,
                step.positions,
                out,
                most_splits,
                HEADS=self.shape.heads,
                SPLIT=SPLIT,
                DIM=self.shape.dim,
                WIDTH=self._width,
                num_warps=4,
                enable_fp_fusion=False,
            )
        return out
