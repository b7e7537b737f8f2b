"""NativeSampler: the same choices as Sampler's, with the vocabulary read by the C++ kernels."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.logits import SampleRow
from engine.native.model import NativeModel
from engine.noise import noise_key
from engine.sampling import Sampler, scale_of

_ROOM = 256  # candidates of a draw that are expected at most


class NativeSampler(Sampler):
    """A :class:`Sampler` for logits on the CPU.

    The kernels find what is exact in any order, the largest logit, and rule out tokens that
    cannot win a draw. The scores of the few others are computed as :class:`Sampler` computes
    them, so not one choice differs.
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
        keys = [noise_key(rows[i].seed, len(rows[i].generated)) for i in group]
        scales = torch.tensor([scale_of(rows[i].params) for i in group], dtype=torch.float32)
        counts, tokens = self._model.candidates(logits, group, scales, keys, _ROOM * len(group))
        row = torch.from_numpy(np.repeat(np.arange(len(group)), counts))
        picked = torch.from_numpy(tokens.astype(np.int64))
        own = torch.tensor(group)[row]
        tops, _ = self._model.largest(logits)
        score = logits[own, picked] - torch.from_numpy(tops)[own]
        score /= scales[row]
        score += self._noise.at(torch.tensor(keys, dtype=torch.int64)[row], picked)
        found = score.numpy()
        ends = np.cumsum(counts)
        return [
            int(tokens[begin + found[begin:end].argmax()])
            for begin, end in zip(ends - counts, ends, strict=True)
        ]
