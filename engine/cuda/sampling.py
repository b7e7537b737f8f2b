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
from engine.cuda.upload import Download, current, upload
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
    _packed: Download

    def fetch(self) -> tuple[list[int], list[float], list[bool]]:
        """Wait for the device: tokens, largest logits, and whether the ranks sufficed."""
        tokens, tops, complete = self._packed.wait()
        values = tops.astype(np.int32).view(np.float32)
        return tokens.tolist(), values.tolist(), complete.astype(bool).tolist()


class CudaSampler(Sampler):
    """A Sampler that waits for the device once a step, and not before it is asked.

    Args:
        vocab: width of the logits.
        device: where the logits are.
    """

    asynchronous = True

    def __init__(self, vocab: int, device: torch.device | str) -> None:
        super().__init__(vocab, device)
        self._device = torch.device(device)

    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[int | SamplingError]:
        """Choose one token for each row: see :meth:`engine.sampling.Sampler.sample`."""
        return self.start(logits, rows).fetch()

    @torch.inference_mode()
    def start(
        self, logits: Tensor, rows: Sequence[SampleRow], positions: Sequence[int] | None = None
    ) -> "Choice":
        """Begin to choose, without waiting for the device.

        Args:
            logits: as in :meth:`engine.sampling.Sampler.sample`.
            rows: likewise.
            positions: of the draws; None: each is after what its row has generated.
        """
        expected = (len(rows), self._vocab)
        if tuple(logits.shape) != expected:
            raise ValueError(f"logits have the shape {tuple(logits.shape)}, not {expected}")
        if positions is None:
            positions = [len(row.generated) for row in rows]
        with current(self._device):
            return Choice(self, adjusted(logits.float(), rows, positions), rows, positions)

    def choose(
        self,
        logits: Tensor,
        rows: Sequence[SampleRow],
        positions: Sequence[int],
        ranks: int = HEAD,
    ) -> Chosen:
        """Start choosing, without waiting for the device, which is current.

        Args:
            logits: float32 [rows, vocab], adjusted; not changed.
            rows: what goes with each row.
            positions: of the draws.
            ranks: how many of the likeliest tokens a top_p looks at; what it does not reach
                with them is told by :meth:`Chosen.fetch`.
        """
        tops = logits.amax(1)
        keys, *numbers = self._parameters(rows, positions)
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
        return Chosen(tokens, Download(packed))

    def again(
        self,
        logits: Tensor,
        rows: Sequence[SampleRow],
        positions: Sequence[int],
        kept: Sequence[int],
    ) -> list[int]:
        """Choose for the rows ``kept`` among all tokens that a top_p leaves, and wait for that."""
        with current(self._device):
            (index,) = upload((np.array(kept, dtype=np.int64),), self._device)
            own = [rows[i] for i in kept], [positions[i] for i in kept]
            return self.choose(logits[index], *own, self._vocab).fetch()[0]

    def _parameters(self, rows: Sequence[SampleRow], positions: Sequence[int]) -> list[Tensor]:
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
        drawn = [noise_key(row.seed, n) for row, n in zip(rows, positions, strict=True)]
        keys = np.array(drawn, dtype=np.int64)
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


class Choice:
    """What a :class:`CudaSampler` chooses in one step: see :class:`engine.sampled.Sampled`.

    Where few ranks did not reach a top_p, which is rare, a row's token is chosen anew when that
    is known.
    """

    def __init__(
        self,
        sampler: CudaSampler,
        logits: Tensor,
        rows: Sequence[SampleRow],
        positions: Sequence[int],
    ) -> None:
        """Begin, with the device current.

        Args:
            sampler: chooses.
            logits: float32 [rows, vocab], adjusted.
            rows: what goes with each row.
            positions: of the draws.
        """
        self.changed: list[int] = []
        self._sampler = sampler
        self._chosen = sampler.choose(logits, rows, positions) if rows else None
        # Logits are large, so they are kept no longer than they may be needed.
        doubtful = any(row.params.top_p < 1 for row in rows)
        self._given = (logits, rows, positions) if doubtful else None

    @property
    def tokens(self) -> Tensor:
        """int64 [rows], on the device."""
        return torch.empty(0) if self._chosen is None else self._chosen.tokens

    @torch.inference_mode()
    def fetch(self) -> list[int | SamplingError]:
        """Wait for the device: in row order a token, or why its logits were not usable."""
        if self._chosen is None:
            return []
        tokens, tops, complete = self._chosen.fetch()
        again = [i for i, done in enumerate(complete) if not done and math.isfinite(tops[i])]
        if again and self._given:
            for i, token in zip(again, self._sampler.again(*self._given, again), strict=True):
                if tokens[i] != token:
                    tokens[i] = token
                    self.changed.append(i)
        self._given = None
        return [
            token if math.isfinite(top) else SamplingError(top)
            for token, top in zip(tokens, tops, strict=True)
        ]
