"""A step's rows and query tiles against a loop over its tokens."""

from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.attention.plan import Segment
from engine.batch import Batch, batch_of
from engine.cuda.layout import lay_out


class Row(NamedTuple):
    position: int
    blocks: tuple[int, ...]


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    segments = []
    for number in range(draw(st.integers(1, 6))):
        start, length = draw(st.integers(0, 20)), draw(st.integers(1, 20))
        blocks = -(-(start + length) // 4) + draw(st.integers(0, 2))
        segments.append(Segment([100 * number + i for i in range(blocks)], start, length))
    return batch_of([0] * sum(s.length for s in segments), segments, [])


@given(batch=batches(), tile=st.sampled_from([1, 4, 8]))
def test_every_row_has_its_position_and_its_blocks(batch: Batch, tile: int) -> None:
    layout = lay_out(batch, tile, 4)
    naive = [
        (segment.start + i, number)
        for number, segment in enumerate(batch.segments)
        for i in range(segment.length)
    ]
    assert list(zip(layout.positions.tolist(), layout.row_tables.tolist(), strict=True)) == naive
    for number, segment in enumerate(batch.segments):
        used = -(-(segment.start + segment.length) // 4)
        assert layout.tables[number, :used].tolist() == list(segment.block_table)[:used]


@given(batch=batches(), tile=st.sampled_from([1, 4, 8]))
def test_tiles_cover_every_row_once_and_never_two_segments(batch: Batch, tile: int) -> None:
    layout = lay_out(batch, tile, 4)
    covered = []
    for first, length, position, table in zip(
        layout.tile_rows,
        layout.tile_lengths,
        layout.tile_positions,
        layout.tile_tables,
        strict=True,
    ):
        assert 1 <= length <= tile
        rows = range(first, first + length)
        covered.extend(rows)
        assert {int(layout.row_tables[row]) for row in rows} == {int(table)}
        assert [int(layout.positions[row]) for row in rows] == list(
            range(position, position + length)
        )
    assert covered == list(range(len(layout.positions)))


def test_everything_is_as_wide_as_the_kernels_read_it() -> None:
    layout = lay_out(batch_of([1, 2], [Segment([3], 0, 2)], []), 4, 4)
    assert {array.dtype for array in (layout.positions, layout.tile_rows, layout.tables)} == {
        np.dtype(np.int32)
    }
