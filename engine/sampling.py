"""Sampler: from one row of logits to one token, whatever else is in the batch.

Nothing here has a state: penalties come from the tokens, randomness from Noise.  Two
rules keep a row's bits apart from its neighbours':

* What is computed for several rows at once is exact in any order: the largest logit, the
  first token that has it, integer hashes; or it is elementwise.
* All else is computed over shapes that only the row itself decides.  Sums of
  probabilities are sums of integers, so their order does not matter either.

Order of operations: what ``engine.logits`` does, temperature, top_k, top_p, min_p, draw.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from engine.logits import SampleRow, adjusted, largest
from engine.noise import Noise, noise_key
from engine.request import SamplingParams
from engine.sampled import Known, Sampled

# Below this a float32 temperature could round to 0, and 0 / 0 is no number.
_MIN_TEMPERATURE = 1e-37
# Likely tokens that top_p looks at before it sorts them all; it rarely keeps more, and
# torch finds so few several times as fast as it sorts a vocabulary.
_HEAD = 256
# Integer probabilities of a whole vocabulary sum to less than 2 to this power.
_SUM_BITS = 62


class SamplingError(Exception):
    """A row of logits holds nothing to choose from; only its own request fails.

    Attributes:
        largest: the row's largest logit: nan, inf, or -inf when every token is masked.
    """

    def __init__(self, largest: float) -> None:
        super().__init__(largest)
        self.largest = largest

    def __str__(self) -> str:
        return f"the model gave no usable logits: the largest is {self.largest}"


class Sampler:
    """Chooses a token for each row of logits.

    Attributes:
        asynchronous: what :meth:`start` returns may still be under way on a device, which the
            next step can be queued behind before anybody here knows the tokens.

    Args:
        vocab: width of the logits.
        device: where the logits are.
        group: rows that are drawn together when no filter applies to them.  It changes no
            bit, only the speed: on a CPU a row at a time stays in the cache, on an
            accelerator fewer launches count.  None chooses by the device.
    """

    asynchronous: ClassVar[bool] = False

    def __init__(
        self, vocab: int, device: torch.device | str = "cpu", group: int | None = None
    ) -> None:
        self._noise = Noise(vocab, device)
        self._vocab = vocab
        self._group = group or (1 if torch.device(device).type == "cpu" else 256)

    @property
    def vocab(self) -> int:
        """Width of the logits: token ids are below it."""
        return self._vocab

    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[int | SamplingError]:
        """Choose one token for each row.

        Args:
            logits: [rows, vocab] on the sampler's device; not changed.  -inf masks a token.
            rows: what goes with each row of ``logits``.

        Returns:
            In row order a token id, or the error of a row whose logits hold nan or +inf
            or are all -inf; the other rows are not touched by it.

        Raises:
            ValueError: ``logits`` has another shape.
        """
        expected = (len(rows), self._vocab)
        if tuple(logits.shape) != expected:
            raise ValueError(f"logits have the shape {tuple(logits.shape)}, not {expected}")
        if not rows:
            return []
        logits = adjusted(logits.float(), rows)
        tops = self._tops(logits)
        out: list[int | SamplingError] = [SamplingError(top) for top in tops]
        greedy, plain, filtered = self._by_kind(tops, rows)

        for i, token in zip(greedy, self._likeliest(logits, greedy), strict=True):
            out[i] = token
        for start in range(0, len(plain), self._group):
            group = plain[start : start + self._group]
            for i, token in zip(group, self._draw(logits, rows, group), strict=True):
                out[i] = token
        drawn = self._draw_filtered(logits, tops, rows, filtered)
        for i, token in zip(filtered, drawn, strict=True):
            out[i] = token
        return out

    def start(
        self, logits: Tensor, rows: Sequence[SampleRow], positions: Sequence[int] | None = None
    ) -> Sampled:
        """Begin to choose as :meth:`sample` does; this sampler has chosen when it returns.

        Args:
            logits: as in ``sample``.
            rows: likewise.
            positions: of the draws, where not all tokens before them are known; else None.
        """
        if positions is not None:
            rows = [row.at(n) for row, n in zip(rows, positions, strict=True)]
        return Known(self.sample(logits, rows))

    def _tops(self, logits: Tensor) -> list[float]:
        """The largest logit of each row, nan if it holds one."""
        tops: list[float] = logits.amax(dim=-1).tolist()
        return tops

    def _by_kind(
        self, tops: Sequence[float], rows: Sequence[SampleRow]
    ) -> tuple[list[int], list[int], list[int]]:
        """Indices of the usable rows: greedy, random without and random with filters."""
        greedy: list[int] = []
        plain: list[int] = []
        filtered: list[int] = []
        for i, (top, row) in enumerate(zip(tops, rows, strict=True)):
            params = row.params
            if not math.isfinite(top):
                continue
            if params.temperature == 0:
                greedy.append(i)
            elif 0 < params.top_k < self._vocab or params.top_p < 1 or params.min_p > 0:
                filtered.append(i)
            else:
                plain.append(i)
        return greedy, plain, filtered

    def _likeliest(self, logits: Tensor, group: list[int]) -> list[int]:
        """The first of the likeliest tokens of some rows."""
        if not group:
            return []
        # torch documents that argmax gives the first of equal values.
        tokens: list[int] = _take(logits, group).argmax(dim=-1).tolist()
        return tokens

    def _draw(self, logits: Tensor, rows: Sequence[SampleRow], group: list[int]) -> list[int]:
        """A token for each of some rows, by its probability."""
        keys = [[noise_key(rows[i].seed, len(rows[i].generated))] for i in group]
        scales = [[scale_of(rows[i].params)] for i in group]
        picked = _take(logits, group)
        score = picked - picked.amax(dim=-1, keepdim=True)
        score /= torch.tensor(scales, dtype=torch.float32, device=logits.device)
        score += self._noise.rows(torch.tensor(keys, dtype=torch.int64, device=logits.device))
        tokens: list[int] = score.argmax(dim=-1).tolist()
        return tokens

    def _draw_filtered(
        self, logits: Tensor, tops: Sequence[float], rows: Sequence[SampleRow], group: list[int]
    ) -> list[int]:
        """A token for each of some rows, by its probability within what filters leave."""
        return [self._draw_kept(logits[i], tops[i], rows[i]) for i in group]

    def _draw_kept(self, logits: Tensor, top: float, row: SampleRow) -> int:
        kept = kept_tokens(logits, top, row.params)
        # The same float32 operations as in _draw: a filter does not change the score of
        # the tokens that it keeps.
        score = (logits[kept] - top) / scale_of(row.params)
        score += self._noise.at(noise_key(row.seed, len(row.generated)), kept)
        return int(kept[score.argmax()])


def kept_tokens(logits: Tensor, top: float, params: SamplingParams) -> Tensor:
    """The tokens that top_k, top_p and min_p leave, applied in that order.

    top_k keeps the k likeliest; top_p the fewest of the likeliest whose probability, within
    what top_k left, reaches top_p; min_p those at least min_p times as likely as the
    likeliest.  Of equally likely tokens the lower id goes first.  At least one is kept.

    Args:
        logits: one row, [vocab], adjusted.
        top: its largest value, finite.
        params: temperature above 0.

    Returns:
        int64 [kept], ascending.
    """
    count = vocab = logits.numel()
    least = -math.inf
    if 0 < params.top_k < vocab or params.top_p < 1:
        count = min(params.top_k or vocab, vocab)
        # How equal values are ordered here reaches no result: only values are used.
        ranked = logits.topk(count if params.top_k else min(vocab, _HEAD)).values
        if params.top_p < 1:
            ranked, count = _nucleus(logits, ranked, count, top, params)
        least = float(ranked[count - 1])
    kept = largest(logits, count, least)
    if params.min_p > 0:
        distance = _distance(logits[kept], top, params)
        kept = kept[distance >= math.log(params.min_p)]
    return kept


def _nucleus(
    logits: Tensor, ranked: Tensor, count: int, top: float, params: SamplingParams
) -> tuple[Tensor, int]:
    """How many of the ``count`` likeliest tokens top_p keeps, and the logits up to there.

    ``ranked`` holds the largest logits in descending order, maybe fewer than ``count``.
    """
    # The likeliest token weighs 1 << bits, so all of them together cannot overflow.
    bits = _SUM_BITS - logits.numel().bit_length()

    def weigh(values: Tensor) -> Tensor:
        return (_distance(values, top, params).exp_() * float(1 << bits)).long()

    complete = ranked.numel() == count
    total = int(weigh(ranked if complete else logits).sum())
    # Compared as integers: against a float, torch would round both to float32.
    goal = math.ceil(params.top_p * total)
    weights = weigh(ranked)
    if not complete and int(weights.sum()) < goal:
        ranked = _descending(logits)
        weights = weigh(ranked)
    before = weights.cumsum(0) - weights
    return ranked, int((before < goal).sum())


def _descending(logits: Tensor) -> Tensor:
    """The values of float32 ``logits`` [vocab], largest first.

    Sorted as integers, upwards: on a CPU torch does that twenty times as fast as it sorts
    floats.  A float's bits order like the float once those of negative ones are turned
    over, and ~ turns all around.
    """

    def turned(bits: Tensor) -> Tensor:
        return bits ^ ((bits >> 31) & 0x7FFFFFFF)

    return turned(~(~turned(logits.view(torch.int32))).sort().values).view(torch.float32)


def _distance(logits: Tensor, top: float, params: SamplingParams) -> Tensor:
    """Log of each token's probability over that of the likeliest, float64, at most 0."""
    return (logits.double() - top) / scale_of(params)


def scale_of(params: SamplingParams) -> float:
    """What differences of logits are divided by."""
    return max(params.temperature, _MIN_TEMPERATURE)


def _take(logits: Tensor, group: list[int]) -> Tensor:
    """The rows of ``group``, which ascends, without a copy when that is all of them."""
    return logits if len(group) == len(logits) else torch.stack([logits[i] for i in group])
