"""DecodeGraphs: decode steps as CUDA graphs, one for each of a few padded batch sizes.

A decode step is hundreds of launches of small kernels, which the host can hardly feed; a
graph starts them all at once.  What a graph reads lies in buffers that never move.  Rows
beyond the step's own are decodes of nothing: they store to the null block, and since no
kernel lets rows know of each other, they change no other row's bits.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from engine.attention.triton_paged import TileStep
from engine.batch import Batch
from engine.cuda.layout import Ints, StepLayout
from engine.cuda.upload import upload

Work: TypeAlias = Callable[[], Tensor]


class Recorded(Protocol):
    """Work that can be done again on what its inputs hold by then.

    Attributes:
        output: where its result lies, every time.
    """

    output: Tensor

    def replay(self) -> None:
        """Do it again, without waiting for it."""
        ...


class CudaRecorder:
    """Records work as CUDA graphs that share one pool of memory.

    So only one graph's output is valid at a time: the one that was replayed last.
    """

    def __init__(self) -> None:
        self._memory: Any = None

    def __call__(self, work: Work) -> Recorded:
        """Do the work once, which compiles its kernels, then record it."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # What other threads do on the device meanwhile is not this graph's affair.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            output = work()
        self._memory = graph.pool()
        return _CudaGraph(graph, output)


class _CudaGraph:
    def __init__(self, graph: torch.cuda.CUDAGraph, output: Tensor) -> None:
        self.output = output
        self._graph = graph

    def replay(self) -> None:
        self._graph.replay()


class EveryTime:
    """Records nothing and does the work each time: for devices without graphs."""

    def __call__(self, work: Work) -> Recorded:
        """Do the work once, to have a place for its result."""
        return _Again(work, work())


class _Again:
    def __init__(self, work: Work, output: Tensor) -> None:
        self.output = output
        self._work = work

    def replay(self) -> None:
        self.output.copy_(self._work())


def padded_sizes(most: int) -> tuple[int, ...]:
    """Batch sizes worth a graph, up to at least ``most``: few rows more than asked for."""
    steps = [1, 2, 4, 8, *range(16, 64, 8), *range(64, 256, 16), *range(256, most + 64, 64)]
    return tuple(size for i, size in enumerate(steps) if i == 0 or steps[i - 1] < most)


class DecodeGraphs:
    """Decode steps of up to so many sequences.

    Args:
        body: from tokens int32 [rows] and their places to hidden states [rows, width].
        record: makes a graph of work.
        most_rows: sequences of the largest step.
        most_keys: tokens of the longest sequence.
        block_tokens: tokens a block.
        null_block: the block that padding rows store to.
        device: where the model is.
    """

    def __init__(
        self,
        body: Callable[[Tensor, TileStep], Tensor],
        record: Callable[[Work], Recorded],
        most_rows: int,
        most_keys: int,
        block_tokens: int,
        null_block: int,
        device: torch.device,
    ) -> None:
        self._device = device
        self._null_block = null_block
        self._sizes = padded_sizes(most_rows)
        self.largest = self._sizes[-1]
        blocks = -(-most_keys // block_tokens)
        # Row 0: tokens; row 1: positions.
        self._rows = torch.zeros(2, self.largest, dtype=torch.int32, device=device)
        self._tables = torch.full(
            (self.largest, blocks), null_block, dtype=torch.int32, device=device
        )
        numbers = torch.arange(self.largest, dtype=torch.int32, device=device)
        ones = torch.ones(self.largest, dtype=torch.int32, device=device)

        def work(size: int) -> Work:
            step = TileStep(
                positions=self._rows[1, :size],
                row_tables=numbers[:size],
                tile_rows=numbers[:size],
                tile_lengths=ones[:size],
                tile_positions=self._rows[1, :size],
                tile_tables=numbers[:size],
                tables=self._tables[:size],
                decodes=True,
                most_keys=most_keys,
            )
            return lambda: body(self._rows[0, :size], step)

        # The largest first: the others fit into its memory.
        self._graphs = {size: record(work(size)) for size in reversed(self._sizes)}

    def run(self, tokens: Ints, layout: StepLayout, batch: Batch | None = None) -> Tensor:
        """Compute one token of each sequence.

        Args:
            tokens: [rows], at most ``largest``.
            layout: of segments of one token each.
            batch: says which tokens the step before chose; None: none.

        Returns:
            Hidden states [rows, width], valid until the next call.
        """
        count = len(tokens)
        size = next(size for size in self._sizes if size >= count)
        self._fill(tokens, layout, size)
        if batch is not None and batch.sources is not None:
            (sources,) = upload((batch.sources,), self._device)
            self._rows[0, :count] = batch.filled(self._rows[0, :count], sources)
        graph = self._graphs[size]
        graph.replay()
        return graph.output[:count]

    def _fill(self, tokens: Ints, layout: StepLayout, size: int) -> None:
        """Put a step into the buffers; rows up to ``size`` become decodes of nothing."""
        count, blocks = layout.tables.shape
        rows = np.zeros((2, size), dtype=np.int32)
        rows[0, :count], rows[1, :count] = tokens, layout.positions
        tables = np.full((size, blocks), self._null_block, dtype=np.int32)
        tables[:count] = layout.tables
        new_rows, new_tables = upload((rows, tables), self._device)
        self._rows[:, :size].copy_(new_rows)
        self._tables[:size, :blocks].copy_(new_tables)


def is_decode(lengths: Sequence[int] | Ints) -> bool:
    """Whether a step computes one token of each of its sequences."""
    return bool(np.all(np.asarray(lengths) == 1))
