"""engine.swap: slots are never lost or held twice, and the right contents come back."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import InvalidParam
from engine.step_times import StepTimes
from engine.swap import Copy, SwapCost, SwapSpace


def test_what_goes_out_comes_back_into_other_blocks() -> None:
    swap = SwapSpace(slots=4, block_tokens=4)
    assert swap.keep(7, 9, [5, 3, 8, 1])
    (out,) = swap.take_copies()
    assert (out.out, out.blocks) == (True, (5, 3, 8))
    assert (swap.kept(7), swap.free_slots, list(swap.holders())) == (9, 1, [7])
    assert swap.restore(7, 0, [2, 4, 6, 0]) == 9
    assert swap.take_copies() == [Copy(False, (2, 4, 6), out.slots)]
    assert (swap.kept(7), swap.free_slots, list(swap.holders())) == (0, 4, [])


def test_without_slots_for_all_nothing_is_kept() -> None:
    """Fault: half of a request is kept, and its other half read from another's block."""
    swap = SwapSpace(slots=2, block_tokens=4)
    assert not swap.keep(1, 9, [0, 1, 2])
    assert (swap.kept(1), swap.free_slots, swap.take_copies()) == (0, 2, [])
    assert swap.restore(1, 0, [0, 1, 2]) == 0
    assert swap.restore(1, 4, [0, 1, 2]) == 4


def test_what_a_cache_has_is_not_copied_again() -> None:
    """Fault: a block that others read is written to."""
    swap = SwapSpace(slots=4, block_tokens=4)
    swap.keep(1, 14, [0, 1, 2, 3])
    (out,) = swap.take_copies()
    assert swap.restore(1, 8, [9, 8, 7, 6]) == 14
    assert swap.take_copies() == [Copy(False, (7, 6), out.slots[2:])]
    swap.keep(2, 6, [0, 1])
    swap.take_copies()
    assert swap.restore(2, 8, [9, 8, 7]) == 8
    assert (swap.take_copies(), swap.free_slots) == ([], 4)


def test_copies_are_handed_over_in_the_order_in_which_they_were_ordered() -> None:
    """Fault: one request's way out goes first, over what another was to bring back."""
    swap = SwapSpace(slots=1, block_tokens=4)
    swap.keep(1, 4, [0])
    swap.take_copies()
    swap.restore(1, 0, [1])
    swap.keep(2, 4, [2])
    assert swap.take_copies() == [Copy(False, (1,), (0,)), Copy(True, (2,), (0,))]


def test_a_request_that_ends_while_it_waits_frees_its_slots() -> None:
    swap = SwapSpace(slots=2, block_tokens=4)
    swap.keep(1, 8, [0, 1])
    swap.drop(1)
    swap.drop(1)
    swap.drop(99)
    assert (swap.free_slots, swap.kept(1)) == (2, 0)


def test_what_is_not_worth_it_is_not_kept() -> None:
    swap = SwapSpace(slots=9, block_tokens=4, worthwhile=lambda tokens: tokens > 5)
    assert not swap.keep(1, 5, [0, 1])
    assert swap.keep(2, 6, [2, 3])
    assert not swap.keep(3, 0, [])


@pytest.mark.parametrize(("slots", "block_tokens"), [(-1, 4), (4, 0), (1.5, 4)])
def test_a_space_that_is_none_is_refused(slots: int, block_tokens: int) -> None:
    with pytest.raises(InvalidParam, match=r"slots|block_tokens"):
        SwapSpace(slots, block_tokens)


def test_the_cheaper_of_copying_and_computing_is_chosen() -> None:
    """Fault: one way is counted, or whole blocks are not."""
    times = StepTimes()
    cost = SwapCost(seconds_per_block=1.0, block_tokens=4, times=times)
    assert cost(100), "nothing is known of prompts"
    for _ in range(50):
        times.observe(100, 0, 49.0)
    assert not cost(100)  # 50 s to copy
    for _ in range(50):
        times.observe(100, 0, 51.0)
    assert cost(100)
    assert not cost(101), "a block that is begun is copied whole"


# ---- any order of calls, with contents ----------------------------------------------------


@dataclass
class Memory:
    """Blocks and slots with contents, and what each request should find in its blocks."""

    swap: SwapSpace
    blocks: dict[int, object] = field(default_factory=dict)
    host: dict[int, object] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)
    running: dict[int, list[int]] = field(default_factory=dict)

    def make_copies(self) -> None:
        for copy in self.swap.take_copies():
            assert len(copy.blocks) == len(copy.slots)
            for block, slot in zip(copy.blocks, copy.slots, strict=True):
                if copy.out:
                    self.host[slot] = self.blocks[block]
                else:
                    self.blocks[block] = self.host[slot]

    def free(self) -> list[int]:
        held = {block for table in self.running.values() for block in table}
        return [block for block in range(8) if block not in held]


actions = st.lists(
    st.tuples(st.sampled_from(["start", "preempt", "abort", "copy"]), st.integers(0, 5)),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(actions, st.integers(0, 8), st.integers(1, 4), st.integers(0, 3))
def test_any_order_of_calls(
    calls: list[tuple[str, int]], slots: int, length: int, cached_blocks: int
) -> None:
    """Fault: a slot is lost, held twice, or read after another's copy went there."""
    memory = Memory(SwapSpace(slots, block_tokens=2))
    swap = memory.swap
    for call, id in calls:
        if call == "start" and id not in memory.running and len(memory.free()) >= length:
            kept = swap.kept(id)
            table = memory.running[id] = memory.free()[-length:]
            cached = 2 * min(cached_blocks, length) if id in memory.waiting else 0
            for at in range(cached // 2):
                memory.blocks[table[at]] = (id, at)
            assert swap.restore(id, cached, table) == max(cached, kept)
            # What neither has is computed in the step that follows, after the copies.
            due = {table[at]: (id, at) for at in range(-(-max(cached, kept) // 2), length)}
            memory.waiting.pop(id, None)
            memory.make_copies()
            memory.blocks.update(due)
            assert [memory.blocks[block] for block in table] == [(id, at) for at in range(length)]
        elif call == "preempt" and id in memory.running:
            table = memory.running.pop(id)
            swap.keep(id, 2 * length - 1, table)
            memory.waiting[id] = length
        elif call == "abort":
            memory.running.pop(id, None)
            memory.waiting.pop(id, None)
            swap.drop(id)
        elif call == "copy":
            memory.make_copies()
            for block in memory.free():
                memory.blocks[block] = "somebody else's"
        held = [slot for id in swap.holders() for slot in swap.slots(id)]
        assert len(held) == len(set(held))
        assert len(held) + swap.free_slots == swap.total_slots
        assert set(swap.holders()) <= set(memory.waiting)
