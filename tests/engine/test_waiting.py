import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.rank import Rank
from engine.waiting import WaitingQueue


def rank(urgency: int, id: int) -> Rank:
    return Rank(urgency, 0, id)


def test_the_smallest_rank_leaves_first() -> None:
    """Fault: the heap gives the lowest rank first, or forgets the order of arrival."""
    queue = WaitingQueue()
    for id, urgency in enumerate([5, -2, 9, -2]):
        queue.push(rank(urgency, id), id)
    assert [queue.pop() for _ in range(4)] == [1, 3, 0, 2]
    assert len(queue) == 0


def test_a_dropped_request_never_comes_up() -> None:
    """Fault: an aborted request is admitted after all, or still counted."""
    queue = WaitingQueue()
    for id in range(3):
        queue.push(rank(id, id), id)
    assert queue.discard(0)
    assert not queue.discard(0)
    assert not queue.discard(99)
    assert 0 not in queue
    assert len(queue) == 2
    assert queue.peek() == 1
    assert [queue.pop(), queue.pop()] == [1, 2]


def test_a_preempted_request_comes_back_to_its_place() -> None:
    """Fault: a request that ran before goes to the end of the queue."""
    queue = WaitingQueue()
    for id in range(3):
        queue.push(rank(id, id), id)
    first = queue.pop()
    queue.push(rank(0, first), first)
    assert queue.pop() == first


def test_an_empty_queue_says_so() -> None:
    """Fault: a queue of dropped requests gives one of them."""
    queue = WaitingQueue()
    queue.push(rank(0, 0), 0)
    queue.discard(0)
    with pytest.raises(IndexError):
        queue.peek()
    with pytest.raises(IndexError):
        queue.pop()


def test_dropped_requests_do_not_pile_up() -> None:
    """Fault: a head that never leaves keeps every aborted entry behind it for ever."""
    queue = WaitingQueue()
    queue.push(rank(-1, 0), 0)
    for id in range(1, 5000):
        queue.push(rank(id, id), id)
        queue.discard(id)
    assert len(queue) == 1
    assert len(queue._heap) < 200


def test_one_that_was_taken_out_of_turn_may_come_back() -> None:
    """Fault: its first entry is still there, so it is queued twice, or never again."""
    queue = WaitingQueue()
    for id in range(5):
        queue.push(rank(id, id), id)
    queue.discard(1)
    queue.take(3)
    assert (3 in queue, len(queue), queue.first(9)) == (False, 3, [0, 2, 4])
    queue.push(rank(3, 3), 3)
    assert [queue.pop() for _ in range(4)] == [0, 2, 3, 4]
    for id in (1, 3, 99):
        with pytest.raises(KeyError):
            queue.take(id)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(-5, 5), st.integers(0, 200))))
def test_any_order_of_calls_gives_the_best_of_those_left(
    actions: list[tuple[bool, int, int]],
) -> None:
    """Fault: sweeping out dropped entries loses or reorders the living."""
    queue, left = WaitingQueue(), {}
    for id, (drop, urgency, target) in enumerate(actions):
        if drop:
            assert queue.discard(target) == (left.pop(target, None) is not None)
        else:
            queue.push(rank(urgency, id), id)
            left[id] = rank(urgency, id)
        assert len(queue) == len(left)
        if left:
            assert queue.peek() == min(left, key=lambda id: left[id])
        assert queue.first(3) == sorted(left, key=lambda id: left[id])[:3]
    assert [queue.pop() for _ in range(len(left))] == sorted(left, key=lambda id: left[id])
