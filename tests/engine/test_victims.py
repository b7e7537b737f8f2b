"""engine.victims: the fewest of the tail, and nobody in vain."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.blocks import FreeListBlocks
from engine.plan import RequestState
from engine.rank import Rank, SchedPolicy
from engine.scheduler_config import SchedulerConfig
from engine.victims import choose_victims

NEWCOMER = 100


class Tables(FreeListBlocks):
    """Block tables as they are given, of blocks of one token; some may share a block."""

    def __init__(self, free: int, tables: Sequence[Sequence[int]]) -> None:
        super().__init__(1, range(free))
        self.tables = tables

    def block_table(self, id: int) -> Sequence[int]:
        return self.tables[id]


def newcomer(tokens: int, priority: int = 5) -> RequestState:
    return RequestState(NEWCOMER, Rank(-1, 0, NEWCOMER), [0] * tokens, tokens, 99, priority)


def running(priorities: Sequence[int]) -> list[RequestState]:
    """Requests of these priorities, highest rank first; all rank below the newcomer."""
    return [RequestState(i, Rank(i, 0, i), [0], 1, 9, p) for i, p in enumerate(priorities)]


def victims(
    tokens: int,
    free: int,
    tables: Sequence[Sequence[int]],
    states: list[RequestState] | None = None,
    **config: object,
) -> list[int]:
    """The ids of those who make way for a newcomer of so many tokens."""
    states = running([0] * len(tables)) if states is None else states
    limits = SchedulerConfig(**{"admission_preemption": 5, **config})  # type: ignore[arg-type]
    chosen = choose_victims(newcomer(tokens), states, Tables(free, tables), limits)
    return [state.id for state in chosen]


@pytest.mark.parametrize(
    ("tokens", "expected"), [(2, []), (3, [2]), (4, [2]), (5, [2, 1]), (8, [2, 1, 0]), (9, [])]
)
def test_as_few_as_give_the_blocks_from_the_tail_up(tokens: int, expected: list[int]) -> None:
    """Fault: all go where one is enough, the first goes instead of the last, or all in vain."""
    assert victims(tokens, free=2, tables=[(1, 2), (3, 4), (5, 6)]) == expected


@pytest.mark.parametrize(("seats", "blocks", "expected"), [(0, 0, []), (1, 0, [1]), (0, 2, [1])])
def test_what_is_kept_for_others_is_not_free(seats: int, blocks: int, expected: list[int]) -> None:
    """Fault: a newcomer takes what one that waits for a prefix is to start with."""
    chosen = choose_victims(
        newcomer(2),
        running([0, 0]),
        Tables(3, [(4, 5), (6, 7)]),
        SchedulerConfig(max_seqs=3, admission_preemption=5),
        kept_seats=seats,
        kept_blocks=blocks,
    )
    assert [state.id for state in chosen] == expected


def test_a_seat_costs_one_victim_however_many_blocks_are_free() -> None:
    assert victims(1, free=9, tables=[(1,), (2,)], max_seqs=2) == [1]
    assert victims(1, free=9, tables=[(1,), (2,)], max_seqs=3) == []
    assert victims(1, free=9, tables=[], max_seqs=1) == []


def test_a_block_that_another_holds_too_does_not_come_free() -> None:
    """Fault: with shared prefixes somebody goes, and its blocks stay where they are."""
    tables = [(1, 2, 3), (1, 2, 4)]
    assert victims(1, free=0, tables=tables) == [1]
    assert victims(2, free=0, tables=tables) == [1, 0]
    assert victims(4, free=0, tables=tables) == [1, 0]
    assert victims(5, free=0, tables=tables) == []
    protected = running([1, 0])
    assert victims(2, free=0, tables=tables, states=protected) == []


def test_the_policy_and_the_option_decide_whether_there_are_victims() -> None:
    for off in ({"admission_preemption": 0}, {"policy": SchedPolicy.FCFS}):
        assert victims(1, free=0, tables=[(1,)], **off) == []


def test_who_made_way_often_enough_stays_and_protects_all_before_it() -> None:
    states = running([0, 0])
    states[1].admission_preemptions = 2
    tables = [(1,), (2,)]
    assert victims(1, 0, tables, states, max_admission_preemptions=3) == [1]
    assert victims(1, 0, tables, states, max_admission_preemptions=2) == []


def test_a_tail_that_is_urgent_itself_keeps_its_seat() -> None:
    """Fault: for a seat whoever is last goes, whatever its priority."""
    assert victims(1, free=9, tables=[(1,), (2,)], states=running([0, 1]), max_seqs=2) == []


def test_one_that_ranks_first_stays() -> None:
    first = RequestState(0, Rank(-2, 0, 0), [0], 1, 9, 0)
    assert victims(1, 0, [(1,)], [first]) == []


@settings(deadline=None)
@given(
    tables=st.lists(st.lists(st.integers(0, 5), max_size=4, unique=True), max_size=5),
    priorities=st.lists(st.integers(0, 1), min_size=5, max_size=5),
    free=st.integers(0, 3),
    tokens=st.integers(1, 8),
    seats=st.integers(5, 6),
)
def test_any_tables(
    tables: list[list[int]], priorities: list[int], free: int, tokens: int, seats: int
) -> None:
    """Fault: with some way of sharing too many go, too few, or the wrong ones."""
    states = running(priorities[: len(tables)])

    def fits_without(count: int) -> bool:
        left, gone = tables[: len(tables) - count], tables[len(tables) - count :]
        kept = {block for table in left for block in table}
        freed = {block for table in gone for block in table} - kept
        return len(left) < seats and free + len(freed) >= tokens

    counts = range(len(tables) + 1)
    fewest = next((count for count in counts if fits_without(count)), 0)
    tail = [state.id for state in reversed(states)][:fewest]
    expected = tail if all(states[id].priority == 0 for id in tail) else []
    assert victims(tokens, free, tables, states, max_seqs=seats) == expected
