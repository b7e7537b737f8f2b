import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.blocks import Allocation, BlockSpace, FreeListBlocks, NoCapacity, blocks_for
from engine.request import InvalidParam


def test_free_list_is_all_or_nothing() -> None:
    """Fault: a refused allocation keeps some of the blocks it took."""
    blocks = FreeListBlocks(4, range(3))
    assert blocks.allocate(1, [0] * 5) == Allocation(cached_tokens=0)
    with pytest.raises(NoCapacity):
        blocks.allocate(2, [0] * 5)
    assert blocks.free_blocks == 1
    with pytest.raises(KeyError):
        blocks.block_table(2)

    # Growing by two blocks where one is free takes none.
    with pytest.raises(NoCapacity):
        blocks.append_slot(1, 16)
    assert list(blocks.block_table(1)) == [0, 1]
    assert blocks.free_blocks == 1

    blocks.append_slot(1, 12)
    assert list(blocks.block_table(1)) == [0, 1, 2]
    blocks.release(1, [])
    assert blocks.free_blocks == blocks.total_blocks == 3


def test_lowest_free_ids_go_first() -> None:
    """Fault: blocks come back in an arbitrary order, so two runs differ."""
    blocks = FreeListBlocks(2, [7, 3, 5, 1])
    blocks.allocate(1, [0] * 4)
    blocks.allocate(2, [0] * 2)
    assert list(blocks.block_table(1)) == [1, 3]
    assert list(blocks.block_table(2)) == [5]
    blocks.release(1, [0] * 4)
    blocks.append_slot(2, 8)
    assert list(blocks.block_table(2)) == [5, 1, 3, 7]


def test_a_slot_in_a_block_that_is_there_costs_none() -> None:
    """Fault: a block a token, or one too many at a block's edge."""
    blocks = FreeListBlocks(4, range(2))
    blocks.allocate(1, [0])
    for total in (1, 2, 3, 4):
        blocks.append_slot(1, total)
        assert blocks.free_blocks == 1
    blocks.append_slot(1, 5)
    assert blocks.free_blocks == 0
    blocks.append_slot(1, 3)
    assert list(blocks.block_table(1)) == [0, 1]


def test_blocks_are_freed_once() -> None:
    """Fault: a second release hands the same block to two requests, unseen."""
    blocks = FreeListBlocks(4, range(2))
    blocks.allocate(1, [0] * 4)
    with pytest.raises(ValueError, match="already holds"):
        blocks.allocate(1, [0] * 4)
    blocks.release(1, [])
    with pytest.raises(KeyError):
        blocks.release(1, [])
    assert blocks.free_blocks == 2


def test_a_pool_that_makes_no_sense_is_refused() -> None:
    """Fault: a block listed twice is given to two requests."""
    with pytest.raises(InvalidParam):
        FreeListBlocks(4, [1, 2, 1])
    with pytest.raises(InvalidParam):
        FreeListBlocks(0, [1, 2])


def test_no_capacity_survives_pickling() -> None:
    """Fault: a refusal is lost on its way out of a worker."""
    error = NoCapacity("2 blocks are needed, 1 are free")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_free_list_is_a_block_space() -> None:
    """Fault: the class drifts from the protocol that the scheduler relies on."""
    space: BlockSpace = FreeListBlocks(16, range(4))
    assert (space.block_tokens, space.total_blocks, space.free_blocks) == (16, 4, 4)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_started_block_is_a_whole_block(tokens: int, blocks: int) -> None:
    """Fault: rounding down leaves the last tokens without memory."""
    assert blocks_for(tokens, 4) == blocks


steps = st.lists(st.tuples(st.sampled_from("arg"), st.integers(0, 4), st.integers(0, 20)))


@settings(max_examples=80, deadline=None)
@given(steps)
def test_every_block_is_free_or_in_one_table(actions: list[tuple[str, int, int]]) -> None:
    """Fault: some order of calls loses a block or gives it out twice."""
    blocks = FreeListBlocks(3, range(10, 18))
    held: dict[int, int] = {}
    for action, id, tokens in actions:
        before = blocks.free_blocks
        needed = -(-tokens // 3)
        if action == "a" and id not in held:
            try:
                blocks.allocate(id, [0] * tokens)
                held[id] = needed
            except NoCapacity:
                assert needed > before == blocks.free_blocks
        elif action == "g" and id in held:
            try:
                blocks.append_slot(id, tokens)
                held[id] = max(held[id], needed)
            except NoCapacity:
                assert needed - held[id] > before == blocks.free_blocks
        elif action == "r" and id in held:
            blocks.release(id, [])
            del held[id]
        tables = [block for id in held for block in blocks.block_table(id)]
        assert [len(blocks.block_table(id)) for id in held] == list(held.values())
        assert len(tables) == len(set(tables))
        assert blocks.free_blocks + len(tables) == blocks.total_blocks == 8
