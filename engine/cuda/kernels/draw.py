"""The kernel that draws tokens: one pass over the logits, with the noise of engine.noise."""

import triton
import triton.language as tl


@triton.jit
def _mix(x):
    """SplitMix64's finaliser, over uint64."""
    x ^= x >> 30
    x *= 0xBF58476D1CE4E5B9
    x ^= x >> 27
    x *= 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _gumbel(key, token):
    """Standard Gumbel noise of tokens, float32: see engine.noise.

    -log1p(-v) is taken in float64, where 1 - v is exact: float32 would lose the small v,
    which are those that win.
    """
    steps = ((token >> 1) + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    halves = _mix(steps + key)
    bits = tl.where(token % 2 == 0, halves, halves >> 32) & 0x7FFFFFFF
    v = (bits.to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10
    v = tl.minimum(v, 0.9999999403953552)
    waited = -tl.log(1.0 - v.to(tl.float64))
    return -tl.log(waited.to(tl.float32))


@triton.jit(do_not_specialize_on_alignment=["keys"])
def draw(
    logits,
    tops,
    scales,
    keys,
    best,
    where,
    vocab,
    row_stride,
    slices,
    SLICE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The best score of one slice (axis 1) of one row (axis 0), and the first token with it.

    The score of a token is (logit - top) / scale + noise; with a scale of 0 it is the logit.
    best and where are [rows, slices].
    """
    row = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1) * SLICE
    top = tl.load(tops + row)
    scale = tl.load(scales + row)
    key = tl.load(keys + row).to(tl.uint64, bitcast=True)
    most = tl.full((WIDTH,), float("-inf"), tl.float32)
    at = tl.zeros((WIDTH,), tl.int32)
    for first in range(begin, min(begin + SLICE, vocab), WIDTH):
        token = first + tl.arange(0, WIDTH)
        score = tl.load(logits + row * row_stride + token, mask=token < vocab, other=float("-inf"))
        if scale > 0:
            score = tl.div_rn(score - top, tl.zeros_like(score) + scale) + _gumbel(key, token)
        # Of a row that fails, too, the token is to be one of the vocabulary.
        score = tl.where(score == score, score, float("-inf"))
        at = tl.where(score > most, token, at)
        most = tl.maximum(score, most)
    highest = tl.max(most, 0)
    # Lanes hold the first of their own best; of the lanes that share it, the lowest token.
    first_best = tl.min(tl.where(most == highest, at, 0x7FFFFFFF), 0)
    tl.store(best + row * slices + tl.program_id(1), highest)
    tl.store(where + row * slices + tl.program_id(1), first_best)
