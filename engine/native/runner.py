"""NativeRunner: a ScheduleOutput in, logits out, by the C++ kernels."""

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kv_pool import KVPool
from engine.native.library import Step
from engine.native.model import NativeModel
from engine.runner import Batch, ModelRunner


class NativeRunner:
    """Runs a :class:`NativeModel` over paged K and V."""

    prepare = staticmethod(ModelRunner.prepare)

    def __init__(self, model: NativeModel, pool: KVPool) -> None:
        self.pool = pool
        self._model = model

    def forward(self, batch: Batch) -> Tensor:
        """Compute a step's K and V and return [len(wanted), vocab] float32 logits."""
        return self.logits(self.hidden(batch), batch.wanted)

    def hidden(self, batch: Batch) -> Tensor:
        """Compute a step's K and V and return the hidden states [rows, width] behind them.

        Raises:
            IndexError: a token is not in the vocabulary, or a position has no angle.
        """
        model, size = self._model, self.pool.block_tokens
        tokens = array("i", batch.tokens)
        if not 0 <= min(tokens) <= max(tokens) < model.vocab:
            raise IndexError(f"token ids are from 0 to {model.vocab - 1}")
        positions, starts, lengths = array("i"), array("i"), array("i")
        tables, offsets = array("i"), array("Q")
        for segment in batch.segments:
            end = segment.start + segment.length
            positions.extend(range(segment.start, end))
            starts.append(segment.start)
            lengths.append(segment.length)
            offsets.append(len(tables))
            tables.extend(segment.block_table[: -(-end // size)])
        if max(positions) >= model.positions:
            raise IndexError(f"positions are from 0 to {model.positions - 1}")
        base = _address(tables)
        places = array("Q", [base + offset * tables.itemsize for offset in offsets])
        step = Step(
            len(tokens),
            len(starts),
            _address(tokens),
            _address(positions),
            _address(starts),
            _address(lengths),
            _address(places),
        )
        out = torch.empty((len(tokens), model.width), dtype=model.dtype)
        model.hidden(self.pool.address, self.pool.layer_bytes, step, out)
        return out

    def logits(self, hidden: Tensor, rows: Sequence[int]) -> Tensor:
        """Return [len(rows), vocab] float32 logits of some rows of hidden states."""
        out = torch.empty((len(rows), self._model.vocab), dtype=torch.float32)
        self._model.logits(hidden, torch.tensor(rows, dtype=torch.int32), out)
        return out


def _address(values: "array[int]") -> int:
    return values.buffer_info()[0]
