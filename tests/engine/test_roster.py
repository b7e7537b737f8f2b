"""engine.roster: one place for each request, and sums that follow it."""

import pytest

from engine.blocks import FreeListBlocks, NoCapacity
from engine.plan import RequestState
from engine.rank import Rank
from engine.roster import Roster


def request(id: int, tokens: int) -> RequestState:
    return RequestState(id, Rank(-id, 0, id), [0] * tokens, tokens, 99)


def sums(roster: Roster) -> tuple[int, int, int]:
    return roster.waiting, roster.fresh, roster.waiting_blocks


@pytest.fixture
def roster() -> Roster:
    """Requests 0, 1 and 2 of 1, 2 and 3 blocks wait for 5 blocks; the last ranks highest."""
    roster = Roster(FreeListBlocks(4, range(5)))
    for id, tokens in enumerate((3, 5, 12)):
        roster.join(request(id, tokens))
    return roster


def test_sums_follow_those_who_wait(roster: Roster) -> None:
    """Fault: the queue counts who has left it, or new ones as preempted."""
    assert sums(roster) == (3, 3, 6)
    roster.seat_head()
    assert sums(roster) == (2, 2, 3)
    roster.preempt(roster.running[0])
    assert sums(roster) == (3, 2, 6)
    roster.leave(2)
    roster.leave(0)
    assert sums(roster) == (1, 1, 2)
    roster.leave(1)
    assert sums(roster) == (0, 0, 0)
    assert roster.head() is None


def test_running_ones_are_in_rank_order_and_leave_from_anywhere(roster: Roster) -> None:
    """Fault: whoever was seated last is taken for the lowest ranked."""
    roster.seat_head()
    roster.seat_head()
    roster.join(request(9, 0))
    roster.seat_head()
    assert [state.id for state in roster.running] == [9, 2, 1]
    roster.leave(2)
    roster.leave(2)
    roster.leave(77)
    assert [state.id for state in roster.running] == [9, 1]
    assert sorted(roster.states) == [0, 1, 9]


def test_a_head_without_blocks_goes_on_waiting(roster: Roster) -> None:
    """Fault: a request is lost between the queue and the running list."""
    roster.seat_head()
    roster.seat_head()
    with pytest.raises(NoCapacity):
        roster.seat_head()
    head = roster.head()
    assert head is not None
    assert (head.id, head.seated, sums(roster)) == (0, False, (1, 1, 1))


def test_a_preempted_one_starts_over_and_what_it_had_is_remembered(roster: Roster) -> None:
    """Fault: recomputed tokens are not seen as such, or a victim goes on where it was."""
    roster.seat_head()
    state = roster.running[0]
    state.computed = 7
    roster.make_way(state)
    assert (state.computed, state.high, state.seated, state.preempted) == (0, 7, False, True)
    roster.seat_head()
    state.computed = 4
    roster.preempt(state)
    assert state.high == 7
    assert (roster.preemptions, roster.admission_preemptions) == (2, 1)
    assert state.admission_preemptions == 1
