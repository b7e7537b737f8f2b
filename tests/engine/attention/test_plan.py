"""engine.attention.plan: rows, slots and padding as functions of position alone."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.attention.plan import QUERY_TILE, AttentionPlanner, Segment, key_length

NULL = 4 * 100


def planner() -> AttentionPlanner:
    return AttentionPlanner(block_tokens=4, null_slot=NULL, device=torch.device("cpu"))


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


def test_a_decode_reads_its_own_keys_and_null_ones_that_are_masked() -> None:
    plan = planner().plan([Segment((9, 2), 4, 1)])
    (group,) = plan.decodes
    assert group.key_slots[0, :5].tolist() == [36, 37, 38, 39, 8]
    assert (group.key_slots[0, 5:] == NULL).all()
    assert (group.mask[0, 0, 0, :5] == 0).all()
    assert torch.isneginf(group.mask[0, 0, 0, 5:]).all()


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
