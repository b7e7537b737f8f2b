"""The small kernels between a decoder layer's matrix products, fused so that they are few.

Several read a product whose segments are still apart (``engine.cuda.gemm.Parts``) and add
them from the first on; PARTS is 1 where there is nothing to add.
"""

import triton
import triton.language as tl


@triton.jit
def _sum(parts, at, stride, inside, PARTS: tl.constexpr, like):
    """The values at ``at`` of PARTS segments ``stride`` apart, rounded to ``like``'s dtype."""
    total = tl.load(parts + at, mask=inside, other=0.0).to(tl.float32)
    for i in tl.static_range(1, PARTS):
        total += tl.load(parts + i * stride + at, mask=inside, other=0.0)
    return total.to(like.dtype.element_ty).to(tl.float32)


@triton.jit(do_not_specialize=["stride"])
def add_rms_norm(
    parts,
    residual,
    weight,
    out,
    epsilon,
    stride,
    n,
    PARTS: tl.constexpr,
    ADDS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """residual += product (with ADDS); out = RMSNorm(residual) * weight; a program a row.

    ``stride`` is how far the segments of the product are apart; all rows are [n].
    """
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, WIDTH)
    inside = col < n
    at = row * n + col
    x = tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        x += _sum(parts, at, stride, inside, PARTS, out)
        rounded = x.to(residual.dtype.element_ty)
        tl.store(residual + at, rounded, mask=inside)
        x = rounded.to(tl.float32)
    mean = tl.sum(x * x, 0) / n
    normed = (x * tl.rsqrt(mean + epsilon)).to(out.dtype.element_ty)
    scaled = normed.to(tl.float32) * tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, scaled.to(out.dtype.element_ty), mask=inside)


@triton.jit(
    do_not_specialize=["stride", "table_stride"],
    do_not_specialize_on_alignment=["positions", "row_tables", "tables"],
)
def rotate_and_store(
    parts,
    q_weight,
    k_weight,
    cosines,
    sines,
    positions,
    row_tables,
    tables,
    q_out,
    pool,
    epsilon,
    stride,
    table_stride,
    block_stride,
    token_stride,
    head_stride,
    value_offset,
    PARTS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF_WIDTH: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    NORMED: tl.constexpr,
):
    """One head (axis 1: those of q, of k, of v) of one row (axis 0) of a qkv product.

    Heads of q and k are normed (with NORMED: Qwen3) and turned by the row's position
    (Su et al., RoFormer, 2021; first half against second half); q goes to q_out
    [rows, HEADS, DIM], k and v to the row's slot of the pool.  Where a value is not finite,
    0 is stored, and nan for the key.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half: tl.constexpr = DIM // 2
    dim = tl.arange(0, HALF_WIDTH)
    inside = dim < half
    at = row * ((HEADS + 2 * KV_HEADS) * DIM) + head * DIM + dim
    low = _sum(parts, at, stride, inside, PARTS, q_out)
    high = _sum(parts, at + half, stride, inside, PARTS, q_out)
    position = tl.load(positions + row)
    if head < HEADS + KV_HEADS:
        if NORMED:
            scale = tl.rsqrt((tl.sum(low * low, 0) + tl.sum(high * high, 0)) / DIM + epsilon)
            norm = q_weight if head < HEADS else k_weight
            low = (low * scale).to(q_out.dtype.element_ty).to(tl.float32)
            high = (high * scale).to(q_out.dtype.element_ty).to(tl.float32)
            low *= tl.load(norm + dim, mask=inside, other=0.0).to(tl.float32)
            high *= tl.load(norm + half + dim, mask=inside, other=0.0).to(tl.float32)
        angle = position.to(tl.int64) * half + dim
        cosine = tl.load(cosines + angle, mask=inside, other=0.0)
        sine = tl.load(sines + angle, mask=inside, other=0.0)
        turned = low * cosine - high * sine
        high = high * cosine + low * sine
        low = turned
    if head < HEADS:
        to = q_out + (row * HEADS + head) * DIM + dim
        tl.store(to, low.to(q_out.dtype.element_ty), mask=inside)
        tl.store(to + half, high.to(q_out.dtype.element_ty), mask=inside)
    else:
        table = tables + tl.load(row_tables + row).to(tl.int64) * table_stride
        block = tl.load(table + position // BLOCK_TOKENS).to(tl.int64)
        own = head - HEADS
        kind = own // KV_HEADS  # 0: a key, 1: a value
        # Attention multiplies the values of later rows of a tile by 0, and 0 times what is
        # no number is none; but it never looks at their scores.  So the key says it instead.
        value = at if kind == 1 else at + KV_HEADS * DIM
        whole_low = tl.abs(_sum(parts, value, stride, inside, PARTS, q_out)) < float("inf")
        whole_high = tl.abs(_sum(parts, value + half, stride, inside, PARTS, q_out)) < float("inf")
        if kind == 1:
            low = tl.where(whole_low, low, 0.0)
            high = tl.where(whole_high, high, 0.0)
        else:
            broken = tl.max((~(whole_low & whole_high)).to(tl.int32), 0) > 0
            low = tl.where(broken, float("nan"), low)
            high = tl.where(broken, float("nan"), high)
        to = pool + block * block_stride + (position % BLOCK_TOKENS) * token_stride
        to += (own % KV_HEADS) * head_stride + kind * value_offset + dim
        tl.store(to, low.to(pool.dtype.element_ty), mask=inside)
        tl.store(to + half, high.to(pool.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["stride"])
def silu_times(parts, out, stride, n, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    """out[row, i] = silu(product[row, i]) * product[row, n + i]; axis 0: row, axis 1: columns."""
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = col < n
    at = row * 2 * n + col
    gate = _sum(parts, at, stride, inside, PARTS, out)
    up = _sum(parts, at + n, stride, inside, PARTS, out)
    opened = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * n + col, (opened * up).to(out.dtype.element_ty), mask=inside)
