"""CudaRunner: steps on a GPU; decodes as graphs, steps with prompts kernel by kernel."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.attention.triton_paged import TileStep, TritonAttention
from engine.batch import Batch, Int64s
from engine.cuda.decoder import Decoder
from engine.cuda.graphs import CudaRecorder, DecodeGraphs, EveryTime, Recorded, Work, is_decode
from engine.cuda.layout import Ints, StepLayout, lay_out
from engine.cuda.upload import current, upload
from engine.kv_pool import KVPool


class CudaRunner:
    """Runs a :class:`Decoder` over one pool of K and V.

    Results lie on the device and may not be computed yet: only who reads them waits.

    Args:
        decoder: the model.
        pool: on the same device.
        most_rows: sequences of the largest decode step that is worth a graph; 0: no graphs.
        most_keys: tokens of the longest sequence.
        record: makes graphs; None: as the device can.
    """

    def __init__(
        self,
        decoder: Decoder,
        pool: KVPool,
        most_rows: int,
        most_keys: int,
        record: Callable[[Work], Recorded] | None = None,
    ) -> None:
        self.pool = pool
        self._decoder = decoder
        # Beyond the angles the kernels would read whatever lies there.
        self._positions = min(decoder.positions, most_keys)
        self._attention = TritonAttention(decoder.shape, pool.data)
        self._graphs: DecodeGraphs | None = None
        if record is None:
            record = CudaRecorder() if pool.device.type == "cuda" else EveryTime()
        if most_rows:
            with torch.inference_mode(), current(pool.device):
                self._graphs = DecodeGraphs(
                    self._body,
                    record,
                    most_rows,
                    min(most_keys, pool.num_blocks * pool.block_tokens),
                    pool.block_tokens,
                    pool.null_block,
                    pool.device,
                )

    def forward(self, batch: Batch) -> Tensor:
        """Compute a step's K and V and return [len(wanted), vocab] float32 logits."""
        return self.logits(self.hidden(batch), batch.wanted)

    @torch.inference_mode()
    def hidden(self, batch: Batch) -> Tensor:
        """Compute a step's K and V and return the hidden states [rows, width] behind them.

        They are valid until the next step.

        Raises:
            IndexError: a token is not in the vocabulary, or a position is beyond the longest
                sequence.
        """
        layout = lay_out(batch, self._decoder.shape.tile_positions, self.pool.block_tokens)
        tokens = np.asarray(batch.tokens, dtype=np.int32)
        if not 0 <= tokens.min() <= tokens.max() < self._decoder.vocab:
            raise IndexError(f"token ids are from 0 to {self._decoder.vocab - 1}")
        if layout.positions.max() >= self._positions:
            raise IndexError(f"positions are from 0 to {self._positions - 1}")
        with current(self.pool.device):
            if self._graphs and len(tokens) <= self._graphs.largest and is_decode(batch.lengths):
                return self._graphs.run(tokens, layout, batch)
            return self._at_once(tokens, layout, batch)

    @torch.inference_mode()
    def logits(self, hidden: Tensor, rows: Sequence[int] | Int64s) -> Tensor:
        """Return [len(rows), vocab] float32 logits of some rows of hidden states."""
        wanted = np.asarray(rows, dtype=np.int32)
        with current(hidden.device):
            if not np.array_equal(wanted, np.arange(len(hidden))):
                (kept,) = upload((wanted,), hidden.device)
                hidden = hidden.index_select(0, kept)
            return self._decoder.logits(hidden)

    def _body(self, tokens: Tensor, step: TileStep) -> Tensor:
        return self._decoder.hidden(tokens, step, self._attention, self.pool.data)

    def _at_once(self, tokens: Ints, layout: StepLayout, batch: Batch) -> Tensor:
        known = tokens if batch.sources is None else np.stack((tokens, batch.sources))
        ids, *arrays = upload((known, *layout.arrays()), self.pool.device)
        if batch.sources is not None:
            ids = batch.filled(ids[0], ids[1])
        return self._body(ids, TileStep.of(layout, arrays))
