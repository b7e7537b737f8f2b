"""Best-fit admission: smaller requests fill gaps, and nobody is passed too often."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.gaps import WINDOW
from engine.prefill import Chunked
from engine.scheduler import Chunk, SchedPolicy, ScheduleOutput
from tests.engine.fake_model import FakeModel, answer, make_scheduler

# Of each request: steps after the one before, tokens of prompt, tokens to make, priority.
Arrival = tuple[int, int, int, int]


def filling(passes: int = 2, **limits: object) -> FakeModel:
    """A model over a scheduler of eight blocks of 4 tokens that lets smaller ones pass."""
    limits = {"blocks": 8, "max_passes": passes, "policy": "priority", **limits}
    return FakeModel(make_scheduler(**limits))  # type: ignore[arg-type]


def crowded(model: FakeModel, length: int = 17) -> int:
    """Somebody who holds most blocks for a while; return the id of the head that waits."""
    model.add([1] * length, 4)
    model.step()
    return model.add([2] * 20, 2)


def check_answers(model: FakeModel) -> None:
    model.run()
    for id in model.reasons:
        assert model.generated[id] == answer(*model.asked[id])
    assert model.scheduler.blocks.free_blocks == model.scheduler.blocks.total_blocks


def started(model: FakeModel) -> list[int]:
    return [chunk.id for chunk in model.plans[-1].prefill if chunk.start == 0]


def test_a_smaller_one_starts_while_the_head_waits() -> None:
    """Fault: blocks lie idle behind a request that they are too few for."""
    model = filling()
    head = crowded(model)
    small = model.add([3] * 5, 2)
    model.step()
    assert model.plans[-1] == ScheduleOutput([Chunk(small, 0, 5, True)], [0], [])
    assert head not in model.scheduler.running()
    assert model.scheduler.stats().gap_admissions == 1
    check_answers(model)


def test_off_nobody_passes() -> None:
    """Fault: the first that does not fit no longer ends admission."""
    model = filling(passes=0)
    crowded(model)
    model.add([3] * 5, 2)
    model.step()
    assert model.plans[-1] == ScheduleOutput([], [0], [])
    check_answers(model)


def test_of_several_the_one_that_leaves_least_over_goes() -> None:
    """Fault: any that fits goes, and the gap stays half empty."""
    model = filling(passes=1)
    crowded(model)
    for length in (3, 9, 16, 8):  # blocks: 1, 3, 4, 2; three are free
        model.add([3] * length, 1)
    model.step()
    assert started(model) == [3]
    check_answers(model)


def test_of_equals_the_highest_ranked_goes() -> None:
    model = filling(passes=1)
    crowded(model)
    ids = [model.add([3] * length, 1) for length in (5, 6, 7)]
    model.step()
    assert started(model) == ids[:1]
    check_answers(model)


@pytest.mark.parametrize(("policy", "first"), [("priority", 0), ("fcfs", 1)])
def test_a_tighter_fit_of_lower_priority_passes_nobody_who_fits(policy: str, first: int) -> None:
    """Fault: an urgent request waits though there is room, since another fills it better."""
    model = filling(passes=1, policy=policy, aging_steps=1)
    model.add([1] * 17, 4, priority=9)
    model.step()
    model.add([2] * 20, 2, priority=9)
    ids = [model.add([3] * 4, 1, priority=5), model.add([3] * 9, 1)]
    model.step()
    assert started(model) == [ids[first]]
    check_answers(model)


def test_one_who_waited_long_lets_nobody_past_a_higher_priority() -> None:
    """Fault: those who fit are compared with the first of them alone, whose priority is low."""
    model = filling(passes=9, blocks=20, aging_steps=1)
    model.add([1] * 37, 4, priority=9)
    model.step()
    model.add([2] * 48, 2, priority=9)
    old = model.add([3] * 4, 1, arrival=-6)
    urgent = model.add([4] * 8, 1, priority=5)
    large = model.add([5] * 32, 1)
    model.step()
    # Ten blocks were free: two for the urgent one, and eight for the best fit of what is left.
    assert started(model) == [urgent, large]
    assert old not in model.scheduler.running()
    check_answers(model)


def test_a_request_is_passed_only_so_often() -> None:
    """Fault: with small requests coming for ever, a large one waits for ever."""
    model = filling(passes=3, max_seqs=8)
    head = crowded(model)
    for _ in range(40):
        model.add([3], 3)
        model.step()
        if head in model.scheduler.running():
            break
    assert head in model.scheduler.running()
    assert model.scheduler.stats().gap_admissions == 3
    check_answers(model)


def test_those_between_count_as_passed_too() -> None:
    """Fault: the head is safe, and the second of the queue starves."""
    model = filling(passes=1)
    crowded(model)
    second = model.add([3] * 16, 2)
    small = [model.add([4] * 2, 4) for _ in range(2)]
    model.step()
    assert started(model) == small[:1]
    for _ in range(3):
        model.step()
        assert small[1] not in started(model)
        model.add([2] * 30, 1, arrival=-100)  # another head, which nobody has passed
    assert second not in model.scheduler.running()
    check_answers(model)


def test_without_a_seat_nobody_passes() -> None:
    model = filling(max_seqs=1)
    crowded(model)
    model.add([3], 1)
    model.step()
    assert model.plans[-1] == ScheduleOutput([], [0], [])
    check_answers(model)


def test_in_a_step_that_preempts_nobody_passes() -> None:
    """Fault: who just lost its blocks is passed, and so is memory that decodes need next."""
    model = filling(blocks=6)
    ids = [model.add([i] * 12, 9) for i in range(2)]
    model.step()
    small = model.add([3] * 4, 1)
    model.step()
    assert model.plans[-1].preempted == [ids[1]]
    assert small not in started(model)
    model.step()
    assert small in started(model)
    check_answers(model)


def test_an_urgent_head_takes_a_place_before_others_fill_the_gap() -> None:
    """Fault: what would have been enough for the head is given away first."""
    model = filling(admission_preemption=2, aging_steps=100)
    model.add([1] * 17, 4)
    model.step()
    urgent = model.add([2] * 20, 2, priority=5)
    model.add([3] * 5, 2)
    model.step()
    assert model.plans[-1] == ScheduleOutput([Chunk(urgent, 0, 20, True)], [], [0])
    check_answers(model)


def test_a_short_prompt_goes_where_a_whole_one_exceeds_the_budget() -> None:
    """Fault: a step is left half empty beside a prompt that needs one of its own."""
    model = filling(blocks=64, max_batch_tokens=8)
    model.add([1], 9)
    model.step()
    long = model.add([2] * 8, 1)
    short = model.add([3] * 7, 1)
    model.step()
    assert started(model) == [short]
    assert long in model.scheduler._roster.states
    check_answers(model)


def test_only_the_first_of_the_queue_are_looked_at() -> None:
    """Fault: a step costs more the longer the queue is."""
    model = filling(passes=9, max_waiting=200)
    head = crowded(model)
    for _ in range(WINDOW - 1):
        model.add([3] * 20, 1)
    model.add([4], 1)
    model.step()
    assert started(model) == []
    model.scheduler.abort(head)
    model.step()
    assert len(started(model)) == 1
    check_answers(model)


def test_a_filler_that_is_preempted_comes_back_once() -> None:
    """Fault: it is queued twice, since the entry of its first wait is still there."""
    model = filling(blocks=7)
    crowded(model, length=15)
    small = model.add([3] * 8, 9)
    model.run_until_preempted(1)
    assert small in {id for plan in model.plans for id in plan.preempted}
    check_answers(model)


arrivals = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 24), st.integers(1, 8), st.integers(0, 3)),
    min_size=4,
    max_size=16,
)


@settings(max_examples=150, deadline=None)
@given(
    jobs=arrivals,
    passes=st.integers(1, 3),
    chunk=st.sampled_from([None, 3, 64]),
    policy=st.sampled_from(list(SchedPolicy)),
    blocks=st.sampled_from([8, 10]),
    levels=st.sampled_from([0, 0, 1]),
)
def test_nobody_is_passed_more_often_than_the_limit_says(
    jobs: list[Arrival],
    passes: int,
    chunk: int | None,
    policy: SchedPolicy,
    blocks: int,
    levels: int,
) -> None:
    """Fault: some load starves a large request, or loses an answer or a block."""
    model = filling(
        passes,
        blocks=blocks,
        policy=policy,
        prefill=None if chunk is None else Chunked(chunk),
        max_seqs=4,
        max_batch_tokens=32,
        admission_preemption=levels,
    )
    states = model.scheduler._roster.states
    passed: dict[int, int] = {}
    for steps, length, most, priority in [*jobs, (400, 1, 1, 0)]:
        for _ in range(steps):
            if not states:
                break
            before = {id: state.rank for id, state in states.items() if not state.seated}
            model.step()
            entered = [before[id] for id in started(model) if id in before]
            for id, rank in before.items():
                if id in states and not states[id].seated:
                    passed[id] = passed.get(id, 0) + sum(other > rank for other in entered)
        model.add([length] * length, most, priority=priority)
    check_answers(model)
    assert max(passed.values(), default=0) <= passes
    assert model.scheduler.stats().gap_admissions >= max(passed.values(), default=0)
