"""NativeRunner: a step's batch in, logits out, by the C++ kernels."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.batch import Batch, Int64s
from engine.kv_pool import KVPool
from engine.native.library import Step
from engine.native.model import NativeModel


class NativeRunner:
    """Runs a :class:`NativeModel` over paged K and V."""

    def __init__(self, model: NativeModel, pool: KVPool) -> None:
        """Run ``model`` over ``pool``.

        Raises:
            ValueError: the pool is of another shape than the model was made for.
        """
        if (pool.shape, pool.block_tokens) != (model.shape, model.block_tokens):
            raise ValueError(
                f"a pool of {pool.shape} in blocks of {pool.block_tokens} tokens; "
                f"the model needs {model.shape} in blocks of {model.block_tokens}"
            )
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
        model = self._model
        tokens, positions = batch.tokens.astype(np.int32), batch.positions()
        if not 0 <= tokens.min() <= tokens.max() < model.vocab:
            raise IndexError(f"token ids are from 0 to {model.vocab - 1}")
        if positions.max() >= model.positions:
            raise IndexError(f"positions are from 0 to {model.positions - 1}")
        tables = batch.block_tables
        # The kernels walk along a row of the array only as far as its sequence goes.
        places = tables.ctypes.data + batch.seats.astype(np.uint64) * np.uint64(tables.strides[0])
        step = Step(
            len(tokens),
            len(batch.starts),
            tokens.ctypes.data,
            positions.ctypes.data,
            batch.starts.ctypes.data,
            batch.lengths.ctypes.data,
            places.ctypes.data,
        )
        out = torch.empty((len(tokens), model.width), dtype=model.dtype)
        model.hidden(self.pool.address, self.pool.layer_bytes, step, out)
        return out

    def logits(self, hidden: Tensor, rows: Sequence[int] | Int64s) -> Tensor:
        """Return [len(rows), vocab] float32 logits of some rows of hidden states."""
        out = torch.empty((len(rows), self._model.vocab), dtype=torch.float32)
        self._model.logits(hidden, torch.from_numpy(np.asarray(rows, dtype=np.int32)), out)
        return out
