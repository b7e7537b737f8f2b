"""Draws tokens on the device: the likeliest, or the largest of logit and noise."""

import torch
from torch import Tensor

from engine.cuda.kernels.draw import draw

_SLICE = 8192
_WIDTH = 1024


def draw_tokens(logits: Tensor, tops: Tensor, scales: Tensor, keys: Tensor) -> Tensor:
    """Choose a token for each row; of equal scores the lower id wins.

    Args:
        logits: float32 [rows, vocab]; -inf is never chosen beside another.
        tops: float32 [rows], each row's largest.
        scales: float32 [rows], temperatures; 0 takes the likeliest token.
        keys: int64 [rows], of :func:`engine.noise.noise_key`.

    Returns:
        int64 [rows]; of a row whose largest logit is not finite, any token.
    """
    rows, vocab = logits.shape
    slices = -(-vocab // _SLICE)
    best = torch.empty(rows, slices, device=logits.device)
    where = torch.empty(rows, slices, dtype=torch.int32, device=logits.device)
    draw[(rows, slices)](
        logits,
        tops,
        scales,
        keys,
        best,
        where,
        vocab,
        logits.stride(0),
        slices,
        SLICE=_SLICE,
        WIDTH=min(_WIDTH, 1 << (vocab - 1).bit_length()),
        num_warps=4,
    )
    # The first of equal slices holds the lower tokens.
    return where.gather(1, best.argmax(1, keepdim=True)).squeeze(1).long()
