"""The kernel of a matrix product whose rows do not know of each other."""

import triton
import triton.language as tl


@triton.jit
def _step(x, weight, at, offset, k, total, EVEN: tl.constexpr, PRECISION: tl.constexpr):
    """Add the products of one step of K to ``total``."""
    if EVEN:
        a = tl.load(x + at)
        b = tl.load(weight + at)
    else:
        inside = at + offset < k
        a = tl.load(x + at, mask=inside[None, :], other=0.0)
        b = tl.load(weight + at, mask=inside[:, None], other=0.0)
    return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit(do_not_specialize=["rows"])
def gemm(
    x,
    weight,
    bias,
    out,
    rows,
    n,
    k,
    segment,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    BAND: tl.constexpr,
    JOINED: tl.constexpr,
    FINAL: tl.constexpr,
    BIASED: tl.constexpr,
    EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out[rows, n] = x[rows, k] weight[n, k]^T, summed segment by segment.

    Every segment of K is summed from zero, TILE_K terms at a time, and the segments are
    then added from the first on.  JOINED: this program does all of them.  Else it does the
    one that its number on axis 1 says; without FINAL it is left in out[segment] as float32,
    for whoever adds them up.  So which programs share the work decides no bit.
    """
    tiles_m = tl.cdiv(rows, TILE_M)
    tiles_n = tl.cdiv(n, TILE_N)
    # Programs that run at the same time share their tiles of x and weight in L2: walk a
    # band of rows across all columns, then the next band.
    number = tl.program_id(0)
    in_band = BAND * tiles_n
    band = number // in_band
    height = min(tiles_m - band * BAND, BAND)
    tile_m = band * BAND + (number % in_band) % height
    tile_n = (number % in_band) // height

    row = tile_m * TILE_M + tl.arange(0, TILE_M)
    col = tile_n * TILE_N + tl.arange(0, TILE_N)
    # Rows and columns beyond the end read the first ones again, and are never stored.
    row_read = tl.where(row < rows, row, 0).to(tl.int64)
    col_read = tl.where(col < n, col, 0).to(tl.int64)
    offset = tl.arange(0, TILE_K)
    x_rows = x + row_read[:, None] * k + offset[None, :]
    weight_cols = weight + col_read[None, :] * k + offset[:, None]

    if JOINED:
        total = tl.zeros((TILE_M, TILE_N), tl.float32)
        for begin in range(0, k, segment):
            part = tl.zeros((TILE_M, TILE_N), tl.float32)
            for at in range(begin, min(begin + segment, k), TILE_K):
                part = _step(x_rows, weight_cols, at, offset, k, part, EVEN, PRECISION)
            total += part
    else:
        begin = tl.program_id(1) * segment
        total = tl.zeros((TILE_M, TILE_N), tl.float32)
        for at in range(begin, min(begin + segment, k), TILE_K):
            total = _step(x_rows, weight_cols, at, offset, k, total, EVEN, PRECISION)
        out += tl.program_id(1).to(tl.int64) * rows * n

    if FINAL and BIASED:
        total += tl.load(bias + col_read).to(tl.float32)[None, :]
    where = out + row.to(tl.int64)[:, None] * n + col[None, :]
    kept = (row < rows)[:, None] & (col < n)[None, :]
    tl.store(where, total.to(out.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["rows"])
def add_segments(
    parts,
    bias,
    out,
    rows,
    n,
    SEGMENTS: tl.constexpr,
    BIASED: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """out[rows, n] = parts[0] + parts[1] + ... + bias, in this order."""
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = col < n
    total = tl.zeros((WIDTH,), tl.float32)
    for i in tl.static_range(SEGMENTS):
        total += tl.load(parts + (i * rows + row) * n + col, mask=inside, other=0.0)
    if BIASED:
        total += tl.load(bias + col, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * n + col, total.to(out.dtype.element_ty), mask=inside)
