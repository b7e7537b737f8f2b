from hypothesis import given, settings
from hypothesis import strategies as st

from router.heap import LazyHeap

_Moves = st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | st.integers(0, 9)), max_size=60)


@settings(max_examples=100, deadline=None)
@given(_Moves)
def test_moves_and_removals_leave_the_smallest_on_top(moves: list[tuple[str, int | None]]) -> None:
    heap: LazyHeap[tuple[int, int]] = LazyHeap()
    plain: dict[str, tuple[int, int]] = {}
    for item, value in moves:
        if value is None:
            heap.discard(item)
            plain.pop(item, None)
        else:
            plain[item] = (value, ord(item))
            heap.put(item, plain[item])
        assert heap.peek() == min(plain, key=plain.__getitem__, default=None)
        assert list(heap) == sorted(plain, key=plain.__getitem__)
        assert len(heap) == len(plain)


def test_dead_entries_do_not_pile_up() -> None:
    heap: LazyHeap[tuple[int, int]] = LazyHeap()
    for round_ in range(10_000):
        for item in range(3):
            heap.put(str(item), (round_ + 1, item))
    assert len(heap._heap) <= 64 + 4 * 3


def test_an_item_that_comes_back_with_its_old_key_is_there_once() -> None:
    heap: LazyHeap[tuple[int, int]] = LazyHeap()
    key = (1, 1)
    heap.put("a", key)
    heap.discard("a")
    heap.put("a", key)
    assert heap.peek() == "a"
    heap.discard("a")
    assert heap.peek() is None
