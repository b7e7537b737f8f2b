"""What a request makes of its row of logits before a token is chosen from it.

In this order: repetition, frequency and presence penalty, bias, then what may not be
chosen at all: tokens that would end an answer too early, and those that its grammar does
not allow.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from engine.guides import Matcher
from engine.request import SamplingParams
from engine.token_counts import TokenCounts


@dataclass(frozen=True, slots=True)
class SampleRow:
    """What the choice of one token depends on, besides the logits.

    Attributes:
        params: what the request asked for; ``params.seed`` is not read.
        seed: any integer, of which the low 64 bits count.
        prompt: token ids of the prompt.
        generated: token ids produced so far, those produced elsewhere included; how many
            there are is the position of the draw. It may grow, and does nothing else.
        stop_tokens: tokens that end the request: not before it has ``params.min_tokens``.
        matcher: knows which tokens its grammar allows after ``generated``; None: all.
        bias: the tokens that have one, int64 [biased], and theirs, float32 [biased]; made
            once, since each step adds it.
        seen, made: what occurs in prompt and answer, and in the answer, if it is penalised.
        ban: ``stop_tokens`` if there is a minimum, int64 [stops]; made once likewise.
    """

    params: SamplingParams
    seed: int
    prompt: Sequence[int]
    generated: Sequence[int]
    stop_tokens: Collection[int] = ()
    matcher: Matcher | None = None
    bias: tuple[Tensor, Tensor] | None = field(init=False, repr=False, compare=False)
    ban: Tensor | None = field(init=False, repr=False, compare=False)
    seen: TokenCounts | None = field(init=False, repr=False, compare=False)
    made: TokenCounts | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        bias = ban = None
        if self.params.logit_bias:
            tokens, biases = zip(*self.params.logit_bias, strict=True)
            bias = torch.tensor(tokens), torch.tensor(biases, dtype=torch.float32)
        if self.stop_tokens and self.params.min_tokens:
            ban = torch.tensor([*self.stop_tokens])
        object.__setattr__(self, "bias", bias)
        object.__setattr__(self, "ban", ban)
        repeats = self.params.repetition_penalty != 1
        counts = self.params.frequency_penalty != 0 or self.params.presence_penalty != 0
        object.__setattr__(self, "seen", TokenCounts(self.prompt) if repeats else None)
        object.__setattr__(self, "made", TokenCounts() if counts else None)

    @property
    def needs_tokens(self) -> bool:
        """Whether its choice depends on which tokens came before, not only on how many."""
        return self.seen is not None or self.made is not None or self.matcher is not None

    def at(self, position: int) -> "SampleRow":
        """The row of the draw at ``position``, whose tokens before it need not be known.

        Not for one that :attr:`needs_tokens`.
        """
        return replace(self, generated=range(position))

    def banned(self, position: int) -> Tensor | None:
        """The stop tokens while it is too early for them, else nothing."""
        return self.ban if position < self.params.min_tokens else None

    def adjusts(self, position: int) -> bool:
        """Whether it changes its logits at all."""
        return (
            self.seen is not None
            or self.made is not None
            or self.bias is not None
            or self.params.min_tokens > position
            or self.matcher is not None
        )


def adjusted(
    logits: Tensor, rows: Sequence[SampleRow], positions: Sequence[int] | None = None
) -> Tensor:
    """The logits that tokens are chosen from: a copy if any row changes its own.

    Args:
        logits: float32 [rows, vocab], as the model gave them; not changed.
        rows: what goes with each row.
        positions: of the draws; None: each is after what its row has generated.
    """
    copied = False
    for i, row in enumerate(rows):
        position = len(row.generated) if positions is None else positions[i]
        if not row.adjusts(position):
            continue
        if not copied:
            logits, copied = logits.clone(), True
        _penalise(logits[i], row)
        _add_bias(logits[i], row)
        _mask(logits[i], row, position)
    return logits


def largest(logits: Tensor, count: int, least: float) -> Tensor:
    """Ids of the ``count`` largest logits, ascending; of equal ones those with lower ids.

    Args:
        logits: one row, [vocab].
        count: at least 1.
        least: the smallest of those logits.
    """
    kept = (logits >= least).nonzero().squeeze(1)
    surplus = kept.numel() - count
    if surplus == 0:
        return kept
    tied = (logits[kept] == least).nonzero().squeeze(1)
    stays = torch.ones_like(kept, dtype=torch.bool)
    stays[tied[-surplus:]] = False
    return kept[stays]


def _penalise(values: Tensor, row: SampleRow) -> None:
    params = row.params
    repetition, frequency, presence = (
        params.repetition_penalty,
        params.frequency_penalty,
        params.presence_penalty,
    )
    if row.seen is not None:
        seen, _ = _counted(row.seen, row, values)
        old = values[seen]
        values[seen] = torch.where(old > 0, old / repetition, old * repetition)
    if row.made is not None:
        seen, counts = _counted(row.made, row, values)
        values[seen] -= counts * frequency + presence


def _add_bias(values: Tensor, row: SampleRow) -> None:
    if row.bias is not None:
        tokens, biases = row.bias
        values[_sent(tokens, values)] += _sent(biases, values)


def _mask(values: Tensor, row: SampleRow, position: int) -> None:
    banned = row.banned(position)
    if row.matcher is not None:
        allowed = torch.from_numpy(_allowed(row.matcher, banned, values.numel()))
        values.masked_fill_(~_sent(allowed, values), -math.inf)
    elif banned is not None:
        values[_sent(banned, values)] = -math.inf


def _allowed(
    matcher: Matcher, banned: Tensor | None, vocab: int
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which tokens may be chosen, [vocab]: where it is over, a grammar wins over ``banned``."""
    words = matcher.mask().astype("<i4", copy=False)
    allowed = np.unpackbits(words.view(np.uint8), bitorder="little")[:vocab].view(np.bool_)
    if banned is not None:
        others = allowed.copy()
        others[banned.numpy()] = False
        if others.any():
            return others
    return allowed


def _counted(counted: TokenCounts, row: SampleRow, like: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct tokens up to now, and how often each occurs: int64 [distinct] both."""
    seen, counts = counted.of(row.generated)
    return _sent(torch.from_numpy(seen), like), _sent(torch.from_numpy(counts), like)


def _sent(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor where ``like`` is, without waiting for what the device does before."""
    return tensor.to(like.device, non_blocking=True)
