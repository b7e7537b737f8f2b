"""CudaSampler: from logits on the device to tokens, with one copy back to the host.

It chooses as :class:`engine.sampling.Sampler` does, all rows at once.  Logarithms and
exponentials are the device's: where two scores, or a sum and its bound, are equal but for
their last bits, the token can be another than on a CPU, though the same on every such device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.cuda.draw import draw_tokens
from engine.cuda.filters import HEAD, Filters, apply
from engine.cuda.upload import current, upload
from engine.logits import SampleRow, adjusted
from engine.noise import noise_key
from engine.sampling import Sampler, SamplingError, scale_of


@dataclass(frozen=True, slots=True)
class Chosen:
    """One step's tokens, which the device may not have computed yet.

    Attributes:
        tokens: int64 [rows], for the device's own use; any token in a row that failed.
    """

    tokens: Tensor
    _packed: Tensor

    def fetch(self) -> tuple[list[int], list[float], list[bool]]:
        """Wait for the device: tokens, largest logits, and whether the ranks sufficed."""
        tokens, tops, complete = self._packed.cpu().numpy()
        values = tops.astype(np.int32).view(np.float32)
        return tokens.tolist(), values.tolist(), complete.astype(bool).tolist()


class CudaSampler(Sampler):
    """A Sampler that waits for the device once a step.

    Args:
        vocab: width of the logits.
        device: where the logits are.
    """

    def __init__(self, vocab: int, device: torch.device | str) -> None:
        super().__init__(vocab, device)
        self._device = torch.device(device)

    @torch.inference_mode()
    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[int | SamplingError]:
        """Choose one token for each row: see :meth:`engine.sampling.Sampler.sample`."""
        expected = (len(rows), self._vocab)
        if tuple(logits.shape) != expected:
            raise ValueError(f"logits have the shape {tuple(logits.shape)}, not {expected}")
        if not rows:
            return []
        with current(self._device):
            return self._sample(adjusted(logits.float(), rows), rows)

    def _sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[int | SamplingError]:
        tokens, tops, complete = self.choose(logits, rows).fetch()
        again = [i for i, done in enumerate(complete) if not done and math.isfinite(tops[i])]
        if again:
            (index,) = upload((np.array(again, dtype=np.int64),), self._device)
            whole = self.choose(logits[index], [rows[i] for i in again], self._vocab)
            for i, token in zip(again, whole.fetch()[0], strict=True):
                tokens[i] = token
        return [
            token if math.isfinite(top) else SamplingError(top)
            for token, top in zip(tokens, tops, strict=True)
        ]

    def choose(self, logits: Tensor, rows: Sequence[SampleRow], ranks: int = HEAD) -> Chosen:
        """Start choosing, without waiting for the device.

        Args:
            logits: float32 [rows, vocab], adjusted; not changed.
            rows: what goes with each row.
            ranks: how many of the likeliest tokens a top_p looks at; what it does not reach
                with them is told by :meth:`Chosen.fetch`.
        """
        tops = logits.amax(1)
        keys, *numbers = self._parameters(rows)
        scales, top_p, log_min_p = (field.view(torch.float64) for field in numbers[:3])
        filtered = [i for i, row in enumerate(rows) if self._is_filtered(row)]
        complete = torch.ones_like(keys)
        if filtered:
            ranks = self._ranks([rows[i] for i in filtered], ranks)
            (index,) = upload((np.array(filtered, dtype=np.int64),), self._device)
            fields = (tops, scales, numbers[3], top_p, log_min_p)
            kept = apply(logits[index], Filters(*(field[index] for field in fields)), ranks)
            logits = logits.index_copy(0, index, kept.logits)
            complete = complete.index_copy(0, index, kept.complete.long())
        tokens = draw_tokens(logits, tops, scales.float(), keys)
        packed = torch.stack((tokens, tops.view(torch.int32).long(), complete))
        return Chosen(tokens, packed)

    def _parameters(self, rows: Sequence[SampleRow]) -> list[Tensor]:
        """Keys, scales, top_p, log of min_p and top_k, each int64 [rows]; three are float64."""
        params = [row.params for row in rows]
        floats = np.array(
            [
                (
                    scale_of(p) if p.temperature else 0.0,
                    p.top_p,
                    math.log(p.min_p) if p.min_p > 0 else -math.inf,
                )
                for p in params
            ]
        )
        keys = np.array([noise_key(row.seed, len(row.generated)) for row in rows], dtype=np.int64)
        limits = [p.top_k if 0 < p.top_k < self._vocab else self._vocab for p in params]
        scales, top_p, log_min_p = np.ascontiguousarray(floats.T).view(np.int64)
        counts = np.array(limits, dtype=np.int64)
        return upload((keys, scales, top_p, log_min_p, counts), self._device)

    def _is_filtered(self, row: SampleRow) -> bool:
        params = row.params
        limited = 0 < params.top_k < self._vocab or params.top_p < 1 or params.min_p > 0
        return params.temperature > 0 and limited

    def _ranks(self, rows: Sequence[SampleRow], ranks: int) -> int:
        limits = [row.params.top_k for row in rows if 0 < row.params.top_k < self._vocab]
        if limits or any(row.params.top_p < 1 for row in rows):
            return max([ranks, *limits])
        return 0
