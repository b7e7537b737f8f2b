"""Noise: the randomness of draws, as a function of (seed, position, token).

There is no generator and so no state to save, restore or share: a request that is
preempted, recomputed or carried on by another replica meets the same noise again.
"""

import torch
from torch import Tensor

_MASK64 = (1 << 64) - 1


def _signed(x: int) -> int:
    """The 64-bit pattern ``x`` as torch's int64 wants it."""
    return x - (1 << 64) if x >> 63 else x


# SplitMix64's increment and multipliers.
_GAMMA = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SIGNED_MIX = tuple(_signed(x) for x in _MIX)


class Noise:
    """Standard Gumbel noise for every token of a vocabulary.

    The bits are SplitMix64's (Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators", OOPSLA 2014): the key of a position is an output of the stream that the
    seed starts, and tokens 2i and 2i + 1 share the halves of the i-th output of the stream
    that the key starts.  Integer arithmetic makes them the same on every device and in
    every batch; what follows is elementwise.

    The argmax of logits plus this noise is token i with probability softmax(logits)[i]
    (Gumbel, "Statistical theory of extreme values", 1954).

    Args:
        vocab: tokens in the vocabulary.
        device: where the noise is needed.
    """

    def __init__(self, vocab: int, device: torch.device | str) -> None:
        self._vocab = vocab
        pairs = torch.arange(1, (vocab + 1) // 2 + 1, dtype=torch.int64, device=device)
        self._steps = pairs * _signed(_GAMMA)

    def rows(self, keys: Tensor) -> Tensor:
        """Noise of all tokens: int64 keys [rows, 1] to float32 [rows, vocab]."""
        halves = _mix(self._steps + keys).view(torch.int32)
        return _gumbel(halves[:, : self._vocab])

    def at(self, key: int | Tensor, tokens: Tensor) -> Tensor:
        """Noise of some tokens: int64 ids [n] to float32 [n], equal to ``rows`` there.

        ``key`` is one for all, or int64 [n].
        """
        halves = _mix(self._steps[tokens >> 1] + key).view(torch.int32).view(-1, 2)
        return _gumbel(halves.gather(1, (tokens & 1).unsqueeze(1)).squeeze(1))


def noise_key(seed: int, position: int) -> int:
    """The key of one draw, a signed 64-bit integer.

    Args:
        seed: any integer, of which the low 64 bits count.
        position: index of the token to produce, from 0.
    """
    return _signed(_mix_int(_mix_int(seed) + (position + 1) * _GAMMA))


def _gumbel(bits: Tensor) -> Tensor:
    """Float32 noise from the low 31 bits of each int32.

    v is uniform in (0, 1).  Draws are won by noise in the upper tail, where v is small and
    float32 is fine-grained: hence log1p(-v) and not log(v).  v stays below 1, so that the
    noise is finite.
    """
    v = ((bits & 0x7FFFFFFF).float() + 0.5) * 2.0**-31
    return v.clamp_max_(1 - 2.0**-24).neg_().log1p_().neg_().log_().neg_()


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser over int64, in place; the same bits as ``_mix_int``."""
    x ^= (x >> 30) & ((1 << 34) - 1)  # >> keeps the sign: the mask makes it logical
    x *= _SIGNED_MIX[0]
    x ^= (x >> 27) & ((1 << 37) - 1)
    x *= _SIGNED_MIX[1]
    x ^= (x >> 31) & ((1 << 33) - 1)
    return x


def _mix_int(x: int) -> int:
    x &= _MASK64
    x = ((x ^ (x >> 30)) * _MIX[0]) & _MASK64
    x = ((x ^ (x >> 27)) * _MIX[1]) & _MASK64
    return x ^ (x >> 31)
