"""engine.attention.plan: rows, slots and padding as functions of position alone."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.attention.plan import QUERY_TILE, AttentionPlanner, Segment, key_length

NULL = 100


def planner() -> AttentionPlanner:
    return AttentionPlanner(block_tokens=4, null_block=NULL, device=torch.device("cpu"))


@given(st.integers(0, 300_000))
def test_key_length_covers_the_row_with_little_waste_and_is_constant_over_a_tile(p: int) -> None:
    keys = key_length(p)
    assert p < keys
    assert keys % QUERY_TILE == 0
    assert keys <= max(p + QUERY_TILE, (p + 1) * 9 // 8 + 1)
    assert keys == key_length(p - p % QUERY_TILE)


def test_slots_follow_the_block_table() -> None:
    plan = planner().plan([Segment((9, 2), 3, 1), Segment((7, 1, 5), 2, 8)])
    assert plan.slots.tolist() == [39, 30, 31, 4, 5, 6, 7, 20, 21]
    assert plan.positions.tolist() == [3, *range(2, 10)]


def test_a_decode_reads_its_own_blocks_and_null_ones_that_are_masked() -> None:
    plan = planner().plan([Segment((9, 2, 5), 4, 1)])
    (group,) = plan.decodes
    assert group.keys == 64
    assert group.tables[0].tolist() == [9, 2] + [NULL] * 14, "5 is not its own yet"
    assert (group.mask[0, 0, 0, :5] == 0).all()
    assert torch.isneginf(group.mask[0, 0, 0, 5:]).all()


def test_a_block_is_fresh_in_the_step_that_writes_its_first_slot() -> None:
    """A block that is not cleared shows its new owner what the old one left."""
    fresh = [planner().plan([Segment((9, 2, 5), a, n)]).fresh.tolist() for a, n in SPANS]
    assert fresh == [[9], [9], [9, 2], [], [2], [2, 5], [5], []]


SPANS = [(0, 1), (0, 4), (0, 5), (1, 3), (4, 1), (4, 5), (8, 4), (5, 3)]


def test_decodes_of_one_key_length_share_a_group() -> None:
    lengths = [3, 70, 5, 90]
    tables = tuple(range(40))
    plan = planner().plan([Segment(tables, n, 1) for n in lengths])
    assert [group.rows.tolist() for group in plan.decodes] == [[0, 2], [1, 3]]


def test_a_chunk_is_cut_at_absolute_tile_borders() -> None:
    plan = planner().plan([Segment(tuple(range(60)), 60, 10)])
    (chunk,) = plan.chunks
    first, second = chunk.tiles
    assert (first.first_row, first.rows, first.offset, first.start) == (0, 4, 60, 0)
    assert (second.first_row, second.rows, second.offset, second.start) == (4, 6, 0, 64)


@given(st.integers(0, 200), st.integers(2, 300))
def test_a_tiles_keys_depend_on_its_position_and_not_on_where_its_chunk_ends(
    start: int, length: int
) -> None:
    """A kernel may sum another way over another number of keys, masked or not."""
    (chunk,) = planner().plan([Segment(tuple(range(130)), start, length)]).chunks
    assert all(tile.keys == key_length(tile.start) for tile in chunk.tiles)
    assert sum(tile.rows for tile in chunk.tiles) == length


def test_decodes_that_read_too_much_for_one_call_are_split() -> None:
    """A group of long sequences, gathered in float32, would take gigabytes."""
    table = tuple(range(1 << 15))
    long = AttentionPlanner(4, len(table), torch.device("cpu"))
    plan = long.plan([Segment(table, 60_000, 1)] * 3)
    assert [group.rows.tolist() for group in plan.decodes] == [[0], [1], [2]]
