"""NativeSampler: the same choices as Sampler's, with the vocabulary read by the C++ kernels."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.logits import SampleRow
from engine.native.library import Draw
from engine.native.model import NativeModel
from engine.noise import noise_key
from engine.sampling import Sampler, scale_of

_ROOM = 256  # candidates of a draw that are expected at most


class NativeSampler(Sampler):
    """A :class:`Sampler` for logits on the CPU.

    The kernels find what is exact in any order, the largest logit and what filters leave, and
    rule out tokens that cannot win a draw. The scores of the few others are computed as
    :class:`Sampler` computes them.
    """

    def __init__(self, model: NativeModel) -> None:
        """Choose among the tokens of ``model``, with its threads."""
        super().__init__(model.vocab, group=256)
        self._model = model

    def _tops(self, logits: Tensor) -> list[float]:
        values, _ = self._model.largest(logits)
        found: list[float] = values.tolist()
        return found

    def _likeliest(self, logits: Tensor, group: list[int]) -> list[int]:
        if not group:
            return []
        _, tokens = self._model.largest(logits)
        found: list[int] = tokens[group].tolist()
        return found

    def _draw(self, logits: Tensor, rows: Sequence[SampleRow], group: list[int]) -> list[int]:
        if not group:
            return []
        logits = logits.contiguous()
        draws = [self._draw_of(logits[i], rows[i]) for i in group]
        counts, tokens = self._model.candidates(draws, self._vocab, _ROOM * len(group))
        of = np.repeat(np.arange(len(group)), counts)
        picked = torch.from_numpy(tokens.astype(np.int64))
        own = torch.tensor(group)[of]
        tops, _ = self._model.largest(logits)
        score = logits[own, picked] - torch.from_numpy(tops)[own]
        scales = torch.tensor([draw.temperature for draw in draws], dtype=torch.float32)
        score /= scales[of]
        score += self._noise.at(torch.tensor([draw.key for draw in draws])[of], picked)
        found = score.numpy()
        ends = np.cumsum(counts)
        return [
            int(tokens[begin + found[begin:end].argmax()])
            for begin, end in zip(ends - counts, ends, strict=True)
        ]

    def _draw_filtered(
        self, logits: Tensor, tops: Sequence[float], rows: Sequence[SampleRow], group: list[int]
    ) -> list[int]:
        return self._draw(logits, rows, group)

    def _draw_of(self, logits: Tensor, row: SampleRow) -> Draw:
        params, vocab = row.params, self._vocab
        return Draw(
            row=logits.data_ptr(),
            key=noise_key(row.seed, len(row.generated)),
            top_k=min(params.top_k, vocab) if params.top_k > 0 else vocab,
            top_p=params.top_p,
            log_min_p=math.log(params.min_p) if params.min_p > 0 else -math.inf,
            temperature=scale_of(params),
        )
