"""StepLayout: a batch as the kernels read it, one array of integers for each question.

Plain numpy on the host: what a step costs here grows with its rows and blocks, without a
loop over sequences in Python.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

Ints: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]
Table: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.int32]]


class Segments(Protocol):
    """What a layout is made from; an engine.batch.Batch is one."""

    @property
    def starts(self) -> Ints:
        """[segments] position of the first token of each segment."""
        ...

    @property
    def lengths(self) -> Ints:
        """[segments] how many rows it has, from 1."""
        ...

    @property
    def seats(self) -> Ints:
        """[segments] which row of ``block_tables`` is its sequence's."""
        ...

    @property
    def block_tables(self) -> Table:
        """[seats, width] ids of blocks."""
        ...


@dataclass(frozen=True, slots=True)
class StepLayout:
    """Rows and query tiles of one step.

    Attributes:
        positions: [rows] position of each row in its sequence.
        row_tables: [rows] which of ``tables`` is its sequence's.
        tile_rows: [tiles] the first row of each query tile.
        tile_lengths: [tiles] how many rows it has, from 1.
        tile_positions: [tiles] the position of its first row.
        tile_tables: [tiles] which of ``tables`` is its sequence's.
        tables: [segments, blocks] ids of blocks; beyond a sequence's own they mean nothing.
    """

    positions: Ints
    row_tables: Ints
    tile_rows: Ints
    tile_lengths: Ints
    tile_positions: Ints
    tile_tables: Ints
    tables: Table

    def arrays(self) -> tuple[Ints | Table, ...]:
        """All of them, in the order above."""
        return (
            self.positions,
            self.row_tables,
            self.tile_rows,
            self.tile_lengths,
            self.tile_positions,
            self.tile_tables,
            self.tables,
        )


def lay_out(batch: Segments, tile_rows: int, block_tokens: int) -> StepLayout:
    """Lay the segments out as rows, in the order given, and cut them into query tiles.

    A tile never holds rows of two segments.  Where a segment is cut decides no bit.

    Args:
        batch: at least one segment.
        tile_rows: rows of the longest tile.
        block_tokens: tokens a block.
    """
    starts, lengths = batch.starts, batch.lengths
    numbers = np.arange(len(starts), dtype=np.int32)
    first_rows = _before(lengths)
    row_tables = np.repeat(numbers, lengths)
    rows = np.arange(int(lengths.sum()), dtype=np.int32)
    positions = rows + (starts - first_rows)[row_tables]

    counts = -(-lengths // tile_rows)
    tile_tables = np.repeat(numbers, counts)
    tiles = np.arange(int(counts.sum()), dtype=np.int32)
    within = (tiles - _before(counts)[tile_tables]) * tile_rows
    used = -(-int((starts + lengths).max()) // block_tokens)
    return StepLayout(
        positions=positions,
        row_tables=row_tables,
        tile_rows=first_rows[tile_tables] + within,
        tile_lengths=np.minimum(lengths[tile_tables] - within, tile_rows),
        tile_positions=starts[tile_tables] + within,
        tile_tables=tile_tables,
        tables=np.ascontiguousarray(batch.block_tables[batch.seats, :used]),
    )


def _before(counts: Ints) -> Ints:
    """For each element the sum of those before it."""
    return np.cumsum(counts, dtype=np.int32) - counts
