"""Paged attention in plain torch: the same bits for a row however it was batched.

Everything runs in float32, also for a bfloat16 pool: the scores keep their
precision, and one kernel serves both.  On CPU the kernel is torch's own flash
attention, called with shapes that depend on the row's position only (see
:mod:`engine.attention.plan`).  Measured on torch 2.13: for one shape the bits of a
row depend neither on the number of sequences in the call nor on the row's place,
and across tile sizes only on whether a tile has a remainder of 1 to 3 rows.  That
last point is the kernel's, not a promise, so :func:`find_decode_tile` tries.
"""

import torch
from torch import Tensor
from torch.nn import functional

from engine.attention.plan import (
    QUERY_TILE,
    AttentionPlan,
    AttentionPlanner,
    ChunkTiles,
    DecodeGroup,
    key_length,
)
from engine.batch import Batch
from engine.kv_pool import KVPool
from engine.linear import NotInvariant

_PROBED_POSITIONS = (0, 5, 63, 130, 511, 575, 1087, 4110)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """[n, h, rows, d] attending over [n, h, keys, d]; ``mask`` is added to the scores."""
    if q.device.type == "cpu":
        out: Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, False, attn_mask=mask, scale=scale
        )[0]
        return out
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


class TileMasks:
    """Causal masks of query tiles, all slices of one band, which grows when needed.

    The band is 0 left of the tile, a triangle over it, and -inf right of it; sliding
    along it gives the mask of any tile at any start without a copy.
    """

    def __init__(self, group: int, device: torch.device) -> None:
        self._group = group
        self._device = device
        self._reach = 0
        self._band = torch.empty(0)

    def of(self, start: int, keys: int) -> Tensor:
        """[1, 1, group * 64, keys]: the mask of the tile that begins at ``start``."""
        if keys > self._reach:
            self._grow(2 * keys)
        first = self._reach - start
        return self._band[:, first : first + keys][None, None]

    def _grow(self, reach: int) -> None:
        rows = torch.arange(QUERY_TILE, device=self._device)
        # Right of a tile's start lie at most the tile and what key_length rounds up by.
        beyond = 2 * QUERY_TILE + reach // 4
        hidden = torch.arange(-reach, beyond, device=self._device) > rows[:, None]
        band = torch.zeros(hidden.shape, device=self._device)
        self._band = band.masked_fill_(hidden, float("-inf")).repeat(self._group, 1)
        self._reach = reach


def _attend_tile(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """One query tile [64, kv_heads, group, d] over k, v [1, keys, kv_heads, d]."""
    rows, heads, group, dim = q.shape
    stacked = q.permute(1, 2, 0, 3).reshape(1, heads, group * rows, dim)
    out = _attend(stacked, k.transpose(1, 2), v.transpose(1, 2), mask, scale)
    return out.reshape(heads, group, rows, dim).permute(2, 0, 1, 3)


def _attend_single(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, tile: int
) -> Tensor:
    """Single rows [n, kv_heads, group, d] over k, v [n, keys, kv_heads, d]."""
    group = q.shape[2]
    padded = functional.pad(q, (0, 0, 0, tile - group)).contiguous()
    out = _attend(padded, k.transpose(1, 2), v.transpose(1, 2), mask, scale)
    return out[:, :, :group]


def find_decode_tile(kv_heads: int, group: int, dim: int, device: torch.device) -> int:
    """Return to how many query rows a decode is padded to get the bits of a full query tile.

    A decode's own rows are one a query head of the group.

    Args:
        kv_heads: key/value heads.
        group: query heads for each of them.
        dim: elements of a head.
        device: where the kernel runs.

    Raises:
        NotInvariant: even a full tile gives a row other bits than its own tile does.
    """
    powers = [tile for tile in (2, 4, 8, 16, 32, 64, 128) if group < tile < group * QUERY_TILE]
    for tile in (group, *powers, group * QUERY_TILE):
        if all(
            _same_as_tile(position, kv_heads, group, dim, device, tile)
            for position in _PROBED_POSITIONS
        ) and _every_row_same_as_tile(kv_heads, group, dim, device, tile):
            return tile
    raise NotInvariant(f"attention with {group} query heads a group and head size {dim}")


def _same_as_tile(
    position: int, heads: int, group: int, dim: int, device: torch.device, tile: int
) -> bool:
    generator = torch.Generator().manual_seed(position)
    keys, row = key_length(position), position % QUERY_TILE
    q = torch.randn(QUERY_TILE, heads, group, dim, generator=generator).to(device)
    # Two sequences, so that dependence on their number shows too; laid out as the pool is.
    kv = torch.randn(2, keys, 2, heads, dim, generator=generator).to(device)
    k, v = kv[:, :, 0], kv[:, :, 1]
    mask = TileMasks(group, device).of(position - row, keys)
    own = mask[:, :, row : row + 1].repeat(2, 1, 1, 1)
    scale = dim**-0.5
    single = _attend_single(q[row].repeat(2, 1, 1, 1), k, v, own, scale, tile)
    return all(
        torch.equal(single[i], _attend_tile(q, k[i : i + 1], v[i : i + 1], mask, scale)[row])
        for i in range(2)
    )


def _every_row_same_as_tile(
    heads: int, group: int, dim: int, device: torch.device, tile: int
) -> bool:
    """The same for all rows of one tile, as many sequences in one call."""
    generator = torch.Generator().manual_seed(dim)
    keys = key_length(QUERY_TILE)
    q = torch.randn(QUERY_TILE, heads, group, dim, generator=generator).to(device)
    kv = torch.randn(1, keys, 2, heads, dim, generator=generator).to(device)
    mask = TileMasks(group, device).of(QUERY_TILE, keys)
    each = kv.repeat(QUERY_TILE, 1, 1, 1, 1)
    own = mask[0, 0, :QUERY_TILE, None, None]
    single = _attend_single(q, each[:, :, 0], each[:, :, 1], own, dim**-0.5, tile)
    return torch.equal(single, _attend_tile(q, kv[:, :, 0], kv[:, :, 1], mask, dim**-0.5))


class PagedAttention:
    """Attention of all layers over one :class:`KVPool`.

    Attributes:
        decode_tile: query rows that a decode is padded to.
    """

    def __init__(self, pool: KVPool, query_heads: int) -> None:
        heads = pool.shape.kv_heads
        self._pool = pool
        self._group = query_heads // heads
        self._masks = TileMasks(self._group, pool.device)
        self._planner = AttentionPlanner(pool.block_tokens, pool.null_block, pool.device)
        self.decode_tile = find_decode_tile(heads, self._group, pool.shape.head_dim, pool.device)

    def plan(self, batch: Batch) -> AttentionPlan:
        """Lay a step out, and prepare for it."""
        plan = self._planner.plan(batch.segments)
        self.begin(plan)
        return plan

    def begin(self, plan: AttentionPlan) -> None:
        """Prepare for a step; call once before its first layer."""
        if len(plan.fresh):
            self._pool.clear(plan.fresh)

    def run(
        self, plan: AttentionPlan, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float
    ) -> Tensor:
        """Store the rows' K and V, then attend.

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
        self._pool.write(layer, plan.slots, k, v)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        grouped = q.float().reshape(len(q), self._pool.shape.kv_heads, self._group, -1)
        for decodes in plan.decodes:
            self._decode(decodes, layer, grouped, scale, out)
        for chunk in plan.chunks:
            self._prefill(chunk, layer, grouped, scale, out)
        return out

    def _decode(self, group: DecodeGroup, layer: int, q: Tensor, scale: float, out: Tensor) -> None:
        k, v = self._pool.read(layer, group.tables, group.keys)
        rows = _attend_single(q[group.rows], k, v, group.mask, scale, self.decode_tile)
        out[group.rows] = rows.flatten(1, 2).to(out.dtype)

    def _prefill(self, chunk: ChunkTiles, layer: int, q: Tensor, scale: float, out: Tensor) -> None:
        k, v = self._pool.read(layer, chunk.table, chunk.tiles[-1].keys)
        for tile in chunk.tiles:
            rows = slice(tile.first_row, tile.first_row + tile.rows)
            within = slice(tile.offset, tile.offset + tile.rows)
            queries = q[rows]
            if tile.rows < QUERY_TILE:
                queries = q.new_zeros(QUERY_TILE, *q.shape[1:])
                queries[within] = q[rows]
            mask = self._masks.of(tile.start, tile.keys)
            keys = slice(0, tile.keys)
            attended = _attend_tile(queries, k[:, keys], v[:, keys], mask, scale)
            out[rows] = attended[within].flatten(1, 2).to(out.dtype)
