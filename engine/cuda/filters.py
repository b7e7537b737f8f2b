"""What top_k, top_p and min_p leave of many rows at once, without waiting for the device.

The rules, and the integers in which probabilities are summed, are those of
:func:`engine.sampling.kept_tokens`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

HEAD = 256
"""Likely tokens that are ranked first; a nucleus rarely holds more."""

_SUM_BITS = 62  # as in engine.sampling


@dataclass(frozen=True, slots=True)
class Filters:
    """Each row's filters, on the device.

    Attributes:
        tops: float32 [rows], the largest logits.
        scales: float64 [rows], temperatures above 0.
        counts: int64 [rows], top_k; the vocabulary where there is none.
        top_p: float64 [rows], 1 where there is none.
        log_min_p: float64 [rows], -inf where there is none.
    """

    tops: Tensor
    scales: Tensor
    counts: Tensor
    top_p: Tensor
    log_min_p: Tensor


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows after their filters.

    Attributes:
        logits: float32 [rows, vocab], -inf where a token is not kept.
        complete: bool [rows]: false where so few ranks did not reach top_p.
    """

    logits: Tensor
    complete: Tensor


def apply(logits: Tensor, filters: Filters, ranks: int) -> Kept:
    """Mask what the filters do not keep.

    Args:
        logits: float32 [rows, vocab]; not changed.
        filters: of each row.
        ranks: how many of the likeliest tokens to rank: at least every top_k that is less
            than the vocabulary; the vocabulary is always enough; 0 where no row has a
            top_k or top_p.
    """
    distance = (logits.double() - filters.tops[:, None]) / filters.scales[:, None]
    kept = distance >= filters.log_min_p[:, None]
    complete = torch.ones_like(filters.counts, dtype=torch.bool)
    if ranks:
        among, complete = _ranked(logits, distance, filters, min(ranks, logits.shape[1]))
        kept &= among
    return Kept(logits.masked_fill(~kept, float("-inf")), complete)


def _ranked(
    logits: Tensor, distance: Tensor, filters: Filters, ranks: int
) -> tuple[Tensor, Tensor]:
    """Which tokens top_k and top_p keep, bool [rows, vocab], and whether ``ranks`` sufficed."""
    vocab = logits.shape[1]
    bits = _SUM_BITS - vocab.bit_length()
    counts, scales = filters.counts[:, None], filters.scales[:, None]

    def weigh(distances: Tensor) -> Tensor:
        return (distances.exp() * float(1 << bits)).long()

    head = logits.topk(ranks).values
    weights = weigh((head.double() - filters.tops[:, None]) / scales)
    ranked = torch.arange(ranks, device=logits.device) < counts
    weights *= ranked
    whole = torch.where(counts <= ranks, weights.sum(1, True), weigh(distance).sum(1, True))
    # In float64 from an integer, as Python multiplies them.
    goal = (filters.top_p[:, None] * whole.double()).ceil().long()
    every = filters.top_p[:, None] >= 1
    before = weights.cumsum(1) - weights
    held = ((before < goal) & ranked).sum(1, True)
    held = torch.where(every, counts, held)
    complete = (held <= ranks) & (every | (counts <= ranks) | (weights.sum(1, True) >= goal))

    least = head.gather(1, held.clamp(1, ranks) - 1)
    above = logits > least
    tied = logits == least
    # Of equally likely tokens those with lower ids are kept.
    room = held - above.sum(1, True)
    among = above | (tied & (tied.cumsum(1) <= room))
    everything = held >= vocab
    return among | everything, (complete | everything).squeeze(1)
