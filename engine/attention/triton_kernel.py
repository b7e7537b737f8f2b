"""Triton kernels of paged attention: one for decodes and prefills, one tile shape.

Online softmax after FlashAttention-2 (Dao, 2023), with the keys cut into splits as in
Flash-Decoding (Dao et al., 2023); but splits are of a fixed length and begin at fixed
positions, so that they depend on nothing but the row's own position.
"""

import triton
import triton.language as tl


@triton.jit
def _safe(peak):
    """The peak to subtract: 0 where a row has seen no key yet, so that nothing is nan."""
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def _merge(peak, weight, values, more_peak, more_weight, more_values):
    """Add one split to what the splits before it gave: two of [rows], and values [rows, d].

    Written as fma, so that no compiler chooses where to round.  A split of which a row
    sees no key changes nothing.
    """
    both = tl.maximum(peak, more_peak)
    old = tl.exp2(peak - _safe(both))
    new = tl.exp2(more_peak - _safe(both))
    weight = tl.fma(weight, old, more_weight * new)
    values = tl.fma(values, old[:, None], more_values * new[:, None])
    return both, weight, values


@triton.jit
def _split(
    q,
    keys_base,
    table,
    first,
    end,
    position,
    dim,
    scale,
    block_stride,
    token_stride,
    value_offset,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attention of q [ROWS, WIDTH] over the keys first..end of one sequence.

    Returns the largest score [ROWS] in powers of two, the sum of weights [ROWS] and the
    weighted sum of values [ROWS, WIDTH].
    """
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    weight = tl.zeros((ROWS,), tl.float32)
    values = tl.zeros((ROWS, WIDTH), tl.float32)
    for begin in range(first, end, KEYS):
        key = begin + tl.arange(0, KEYS)
        inside = key < end
        # Beyond the end lies what an earlier owner left: never read, not even to mask it.
        block = tl.load(table + key // BLOCK_TOKENS, mask=inside, other=0).to(tl.int64)
        at = keys_base + block * block_stride + (key % BLOCK_TOKENS) * token_stride
        k = tl.load(
            at[None, :] + dim[:, None],
            mask=inside[None, :] & (dim < DIM)[:, None],
            other=0.0,
        )
        score = tl.dot(q, k, input_precision=PRECISION) * scale
        score = tl.where(key[None, :] <= position[:, None], score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 1))
        part = tl.exp2(score - _safe(higher)[:, None])
        shrink = tl.exp2(peak - _safe(higher))
        weight = tl.fma(weight, shrink, tl.sum(part, 1))
        v = tl.load(
            at[:, None] + value_offset + dim[None, :],
            mask=inside[:, None] & (dim < DIM)[None, :],
            other=0.0,
        )
        values = tl.dot(part.to(v.dtype), v, values * shrink[:, None], input_precision=PRECISION)
        peak = higher
    return peak, weight, values


# One compilation serves all steps: numbers that change between them are not looked at.
@triton.jit(
    do_not_specialize=["table_stride", "most_splits"],
    do_not_specialize_on_alignment=[
        "tables",
        "tile_rows",
        "tile_lengths",
        "tile_positions",
        "tile_tables",
    ],
)
def attend(
    q,
    pool,
    tables,
    tile_rows,
    tile_lengths,
    tile_positions,
    tile_tables,
    out,
    part_values,
    part_weights,
    scale,
    table_stride,
    block_stride,
    token_stride,
    head_stride,
    value_offset,
    most_splits,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    SHARED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attention of one tile: consecutive rows of a sequence, LANES query heads of a group.

    Row r of the tile is query head r % LANES of its position r // LANES, so that heads
    that read the same keys share one load of them.  Axis 0: tile; axis 1: key/value head
    and, where a group has more than LANES heads, which of them; axis 2, with SHARED: which
    of the splits, every so many.  With SHARED the splits are left in part_values
    [rows, heads, most_splits, DIM] and part_weights [rows, heads, most_splits, 2] for
    ``add_splits``; without, this program adds them up itself, in the same way.
    """
    tile = tl.program_id(0)
    kv_head = tl.program_id(1) % KV_HEADS
    first_head = (tl.program_id(1) // KV_HEADS) * LANES
    row = tl.arange(0, ROWS) // LANES
    lane = first_head + tl.arange(0, ROWS) % LANES
    length = tl.load(tile_lengths + tile)
    start = tl.load(tile_positions + tile)
    position = start + row
    used = (row < length) & (lane < GROUP)
    # [ROWS] where q and out have the row: heads of a row follow each other.
    place = (tl.load(tile_rows + tile) + row).to(tl.int64) * HEADS + kv_head * GROUP + lane
    dim = tl.arange(0, WIDTH)
    kept = used[:, None] & (dim < DIM)[None, :]
    mine = tl.load(q + place[:, None] * DIM + dim[None, :], mask=kept, other=0.0)
    table = tables + tl.load(tile_tables + tile).to(tl.int64) * table_stride
    keys_base = pool + kv_head * head_stride
    keys = start + length
    splits = tl.cdiv(keys, SPLIT)
    if SHARED:
        for split in range(tl.program_id(2), splits, tl.num_programs(2)):
            peak, weight, values = _split(
                mine, keys_base, table, split * SPLIT, min(split * SPLIT + SPLIT, keys), position,
                dim, scale, block_stride, token_stride, value_offset,
                ROWS, KEYS, DIM, WIDTH, BLOCK_TOKENS, PRECISION,
            )  # fmt: skip
            slot = place * most_splits + split
            tl.store(part_values + slot[:, None] * DIM + dim[None, :], values, mask=kept)
            tl.store(part_weights + slot * 2, peak, mask=used)
            tl.store(part_weights + slot * 2 + 1, weight, mask=used)
    else:
        peak = tl.full((ROWS,), float("-inf"), tl.float32)
        weight = tl.zeros((ROWS,), tl.float32)
        values = tl.zeros((ROWS, WIDTH), tl.float32)
        for split in range(0, splits):
            more_peak, more_weight, more_values = _split(
                mine, keys_base, table, split * SPLIT, min(split * SPLIT + SPLIT, keys), position,
                dim, scale, block_stride, token_stride, value_offset,
                ROWS, KEYS, DIM, WIDTH, BLOCK_TOKENS, PRECISION,
            )  # fmt: skip
            peak, weight, values = _merge(peak, weight, values, more_peak, more_weight, more_values)
        result = tl.div_rn(values, tl.broadcast_to(weight[:, None], (ROWS, WIDTH)))
        tl.store(
            out + place[:, None] * DIM + dim[None, :], result.to(out.dtype.element_ty), mask=kept
        )


@triton.jit(do_not_specialize=["most_splits"], do_not_specialize_on_alignment=["positions"])
def add_splits(
    part_values,
    part_weights,
    positions,
    out,
    most_splits,
    HEADS: tl.constexpr,
    SPLIT: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Add up the splits of one row (axis 0) and query head (axis 1), from the first on."""
    row = tl.program_id(0)
    place = row.to(tl.int64) * HEADS + tl.program_id(1)
    dim = tl.arange(0, WIDTH)
    peak = tl.full((1,), float("-inf"), tl.float32)
    weight = tl.zeros((1,), tl.float32)
    values = tl.zeros((1, WIDTH), tl.float32)
    one = tl.arange(0, 1)
    for split in range(0, tl.load(positions + row) // SPLIT + 1):
        slot = place * most_splits + split + one
        more_values = tl.load(
            part_values + slot[:, None] * DIM + dim[None, :], mask=(dim < DIM)[None, :], other=0.0
        )
        more_peak = tl.load(part_weights + slot * 2)
        more_weight = tl.load(part_weights + slot * 2 + 1)
        peak, weight, values = _merge(peak, weight, values, more_peak, more_weight, more_values)
    result = tl.div_rn(values, tl.broadcast_to(weight[:, None], (1, WIDTH)))
    tl.store(
        out + (place + one)[:, None] * DIM + dim[None, :],
        result.to(out.dtype.element_ty),
        mask=(dim < DIM)[None, :],
    )
