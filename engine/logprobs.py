"""Log-probabilities: how likely the model found a token, whatever was made of its logits.

They are of the model's own distribution, before penalties, bias, temperature, filters and
grammar.  Each row is computed by itself, always by the same operations over the same
shape, so its bits depend on its logits alone.
"""

import math
from typing import Final

import torch
from torch import Tensor

from engine.logits import largest
from engine.sampling import SamplingError
from engine.submission import TokenLogprobs

# Half of all rows of bfloat16 logits hold equal ones just where the likeliest end.
_SPARE: Final = 32

LOWEST: Final = -9999.0
"""Stands for the logarithm of 0, which JSON has no number for; vLLM's choice too."""


def token_logprobs(logits: Tensor, token: int, top: int) -> TokenLogprobs:
    """How likely ``token`` was, and which ``top`` tokens were the likeliest.

    Equal logits go by the lower id, as in a greedy choice.

    Args:
        logits: one row as the model gave it, [vocab].
        token: below vocab.
        top: from 0; more than vocab is vocab.

    Raises:
        SamplingError: the row holds nan or +inf, or nothing but -inf.
    """
    logits = logits.float()
    peak = float(logits.max())
    if not math.isfinite(peak):
        raise SamplingError(peak)
    ids = [token, *_likeliest(logits, min(top, logits.numel()))]
    told = torch.log_softmax(logits, dim=-1)
    values = [max(value, LOWEST) for value in told[ids].tolist()]
    return TokenLogprobs(token, values[0], tuple(zip(ids[1:], values[1:], strict=True)))


def _likeliest(logits: Tensor, count: int) -> list[int]:
    """Ids of the largest logits, largest first."""
    if count == 0:
        return []
    # Which of equal values topk takes, and in which order, is not defined.  If it finds some
    # that are smaller than the last one wanted, it has found all that equal that one.
    head = logits.topk(min(count + _SPARE, logits.numel()))
    least, smallest = head.values[[count - 1, -1]].tolist()
    if smallest < least or head.indices.numel() == logits.numel():
        ids = head.indices.sort().values
    else:
        ids = largest(logits, count, least)
    order = logits[ids].sort(descending=True, stable=True).indices[:count]
    likeliest: list[int] = ids[order].tolist()
    return likeliest
