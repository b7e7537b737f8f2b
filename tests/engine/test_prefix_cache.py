from collections import OrderedDict

import pytest

from engine.blocks import Allocation, BlockSpace, NoCapacity, PrefixCache
from engine.prefix_cache import BlockManager, BooksBroken
from engine.prefix_hash import chain
from engine.request import InvalidParam


def manager(count: int = 8) -> BlockManager:
    """Blocks 0 to ``count`` - 1 of 4 tokens."""
    return BlockManager(4, range(count))


def serve(blocks: BlockManager, id: int, tokens: list[int]) -> list[int]:
    """Allocate for tokens, compute them all, and return the table."""
    blocks.allocate(id, tokens)
    blocks.computed(id, tokens, len(tokens))
    return list(blocks.block_table(id))


def test_it_is_a_block_space_and_a_prefix_cache() -> None:
    """Fault: the class drifts from the protocols that the scheduler relies on."""
    space: BlockSpace = manager()
    cache: PrefixCache = manager()
    assert isinstance(cache, PrefixCache)
    assert (space.block_tokens, space.total_blocks, space.free_blocks) == (4, 8, 8)


def test_what_was_computed_is_found_after_its_release() -> None:
    """Fault: a hit of another length than what was full and computed."""
    blocks = manager()
    tokens = list(range(10))
    assert blocks.allocate(1, tokens) == Allocation(cached_tokens=0)
    blocks.release(1, tokens)
    assert (blocks.free_blocks, blocks.cached_blocks) == (8, 2)
    assert blocks.allocate(2, [*range(8), 70, 71, 72]).cached_tokens == 8
    assert list(blocks.block_table(2)) == [0, 1, 2]
    assert blocks.allocate(3, [*range(4), 70, 71, 72, 73, 74]).cached_tokens == 4
    # One block is shared and in two tables, but held once.
    assert blocks.block_table(3)[0] == 0
    assert blocks.free_blocks == 3


@pytest.mark.parametrize("computed", [0, 3, 4, 7])
def test_only_what_was_computed_is_found(computed: int) -> None:
    """Fault: a block whose last tokens have no K and V yet is found."""
    blocks, tokens = manager(), list(range(8))
    blocks.allocate(1, tokens)
    blocks.release(1, tokens[:computed])
    assert blocks.look_up([*tokens, 9]).tokens == computed // 4 * 4


def test_a_refused_request_changes_nothing() -> None:
    """Fault: on the way to a refusal something is evicted, or counted as used."""
    blocks = manager(4)
    serve(blocks, 1, list(range(9)))
    serve(blocks, 2, [50, 51, 52, 53])
    blocks.release(2, [50, 51, 52, 53])
    blocks.take_events()
    with pytest.raises(NoCapacity):
        blocks.allocate(3, [50, 51, 52, 53, 54, 55, 56, 57])
    with pytest.raises(NoCapacity):
        blocks.append_slot(1, 17)
    assert blocks.take_events() == ([], [])
    assert blocks.look_up([50, 51, 52, 53, 54]).tokens == 4
    with pytest.raises(KeyError):
        blocks.block_table(3)


def test_unused_blocks_go_first_and_then_those_that_were_held_longest_ago() -> None:
    """Fault: something is forgotten while an unused block is there; or the beginning of a
    prompt before its end, so that the end is kept for nobody."""
    blocks = manager(6)
    for id, tokens in ((1, list(range(8))), (2, list(range(50, 58)))):
        serve(blocks, id, tokens)
    blocks.release(2, list(range(50, 58)))
    blocks.release(1, list(range(8)))
    blocks.take_events()
    blocks.allocate(3, [9] * 4 * 5)
    # Unused: 4 and 5. Then the second prompt from its end: 3 and 2. Then the first: 1.
    assert list(blocks.block_table(3)) == [4, 5, 3, 2, 1]
    gone = [*reversed(chain(range(50, 58), 4)), chain(range(8), 4)[1]]
    assert blocks.take_events() == ([], gone)
    assert blocks.look_up(list(range(9))).tokens == 4


def test_a_cached_block_that_is_found_is_not_handed_out_as_well() -> None:
    """Fault: it is counted both as found and as free, and evicted for its own finder."""
    blocks = manager(3)
    serve(blocks, 1, list(range(8)))
    blocks.release(1, list(range(8)))
    with pytest.raises(NoCapacity):
        blocks.allocate(2, list(range(13)))
    assert blocks.allocate(2, list(range(12))).cached_tokens == 8
    assert sorted(blocks.block_table(2)) == [0, 1, 2]


def test_of_two_that_computed_the_same_one_is_found() -> None:
    """Fault: the other's block takes the name, so that whoever holds the first one has a block
    that is no more what its children depend on; or it stays for ever under no name."""
    blocks, tokens = manager(), list(range(8))
    blocks.allocate(1, tokens)
    blocks.allocate(2, tokens)
    for id in (1, 2):
        blocks.computed(id, tokens, 8)
    assert blocks.take_events() == (chain(tokens, 4), [])
    blocks.release(2, [*tokens, 9, 9, 9, 9])
    blocks.audit()
    assert blocks.cached_blocks == 0
    blocks.release(1, tokens)
    assert (blocks.cached_blocks, blocks.free_blocks) == (2, 8)
    assert serve(blocks, 3, [*tokens, 9])[:2] == [0, 1]


def test_blocks_are_freed_once() -> None:
    """Fault: a second release hands the same block to two requests, unseen."""
    blocks = manager()
    blocks.allocate(1, [0] * 4)
    with pytest.raises(ValueError, match="already holds"):
        blocks.allocate(1, [0] * 4)
    blocks.release(1, [])
    with pytest.raises(KeyError):
        blocks.release(1, [])
    assert (blocks.free_blocks, blocks.cached_blocks) == (8, 0)


def test_a_pool_that_makes_no_sense_is_refused() -> None:
    """Fault: a block listed twice is given to two requests."""
    with pytest.raises(InvalidParam):
        BlockManager(4, [1, 2, 1])
    with pytest.raises(InvalidParam):
        BlockManager(0, [1, 2])


def test_a_check_finds_books_that_do_not_add_up() -> None:
    """Fault: the audit passes whatever it sees."""
    blocks = manager()
    serve(blocks, 1, list(range(9)))
    blocks.audit()
    blocks._holders[0] += 1
    with pytest.raises(BooksBroken, match="the tables hold"):
        blocks.audit()
    blocks._holders[0] -= 1
    del blocks._named._name_of[0]
    with pytest.raises(BooksBroken, match="do not match"):
        blocks.audit()


def test_blocks_are_evicted_from_what_gives_up_its_first_at_once() -> None:
    """Fault: the order of eviction is a dict, which is searched from where it once began, so
    that many evictions in a row take the square of their time."""
    assert isinstance(manager()._cached, OrderedDict)


def test_a_short_list_of_what_is_held_tells_of_what_stays_longest() -> None:
    """Fault: all names are listed for a few; or what is told of begins in the middle."""
    blocks = BlockManager(4, range(12))
    first, second, third = list(range(8)), list(range(20, 28)), list(range(40, 52))
    for id, tokens in enumerate((first, second)):
        blocks.allocate(id, tokens)
        blocks.release(id, tokens)
    blocks.allocate(2, third)
    blocks.computed(2, third, 12)
    blocks.allocate(3, [*first, 9])
    blocks.release(3, [*first, 9])
    wanted = [*chain(third, 4), *chain(first, 4), *chain(second, 4)]
    for most in (0, 2, 4, 6, 99):
        assert blocks.held_prefixes(most) == wanted[:most]
    assert blocks.take_events() == ([], [])
