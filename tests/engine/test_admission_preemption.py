"""Urgent newcomers take the places of running requests, and change nobody's answer."""

import pytest

from engine.prefill import Chunked
from engine.scheduler import Chunk, QueueFull, ScheduleOutput
from tests.engine.fake_model import FakeModel, answer, make_scheduler


def preemptive(levels: int = 2, policy: str = "priority", **limits: object) -> FakeModel:
    """A model over a scheduler with the option on; blocks of 4 tokens, 4 steps a level."""
    return FakeModel(make_scheduler(policy=policy, admission_preemption=levels, **limits))  # type: ignore[arg-type]


def low_ones(model: FakeModel, count: int, length: int, most: int = 9) -> list[int]:
    """Requests of priority 0 that have had their first step."""
    ids = [model.add([i] * length, most) for i in range(count)]
    model.step()
    return ids


def check_answers(model: FakeModel) -> None:
    """Run to the end: all say what they would have said, and all blocks are free."""
    model.run()
    for id in model.reasons:
        assert model.generated[id] == answer(*model.asked[id])
    assert model.scheduler.blocks.free_blocks == model.scheduler.blocks.total_blocks


# ---- who makes way ------------------------------------------------------------------------


def test_without_a_seat_the_lowest_makes_way() -> None:
    """Fault: an urgent request waits until somebody's long answer ends."""
    model = preemptive(max_seqs=2)
    first, second = low_ones(model, 2, length=3)
    urgent = model.add([9] * 3, 2, priority=2)
    model.step()
    assert model.plans[-1] == ScheduleOutput([Chunk(urgent, 0, 3, True)], [first], [second])
    check_answers(model)
    assert list(model.reasons) == [urgent, first, second]
    stats = model.scheduler.stats()
    assert (stats.preemptions, stats.admission_preemptions) == (1, 1)


@pytest.mark.parametrize(("length", "victims"), [(8, 1), (9, 2), (16, 2), (17, 3)])
def test_without_blocks_as_few_as_needed_make_way(length: int, victims: int) -> None:
    """Fault: one is short of a block and all that are less urgent are thrown out."""
    model = preemptive(blocks=6)
    low = low_ones(model, 3, length=7)
    assert model.scheduler.blocks.free_blocks == 0
    urgent = model.add([9] * length, 2, priority=2)
    model.step()
    gone = low[::-1][:victims]
    left = low[: 3 - victims]
    assert model.plans[-1] == ScheduleOutput([Chunk(urgent, 0, length, True)], left, gone)
    check_answers(model)


def test_several_newcomers_of_one_step_take_a_place_each() -> None:
    model = preemptive(max_seqs=2)
    first, second = low_ones(model, 2, length=3)
    urgent = [model.add([9] * 3, 2, priority=5) for _ in range(2)]
    model.step()
    assert model.plans[-1].preempted == [second, first]
    assert model.scheduler.running() == urgent
    check_answers(model)


def test_the_tokens_of_a_victim_are_budget_again() -> None:
    """Fault: a step computes less than it could, or a row of a request without blocks."""
    model = preemptive(prefill=Chunked(8), max_batch_tokens=8, max_seqs=2)
    first = model.add([1], 9, priority=5)
    model.step()
    long = model.add([2] * 30, 1)
    model.step()
    urgent = model.add([3] * 20, 1, priority=6)
    model.step()
    assert model.plans[-1] == ScheduleOutput([Chunk(urgent, 0, 7, False)], [first], [long])
    check_answers(model)
    assert model.scheduler.stats().recomputed_tokens == 7


def test_a_prompt_longer_than_the_budget_runs_alone_when_all_others_made_way() -> None:
    model = preemptive(max_batch_tokens=4, max_seqs=1)
    (low,) = low_ones(model, 1, length=3)
    urgent = model.add([9] * 9, 2, priority=2)
    model.step()
    assert model.plans[-1] == ScheduleOutput([Chunk(urgent, 0, 9, True)], [], [low])
    check_answers(model)


# ---- who does not -------------------------------------------------------------------------


def no_preemption(model: FakeModel) -> None:
    model.step()
    assert model.plans[-1].preempted == []
    check_answers(model)
    assert model.scheduler.stats().admission_preemptions == 0


def test_fewer_levels_than_set_do_not_preempt() -> None:
    model = preemptive(levels=3, max_seqs=2)
    low_ones(model, 2, length=3)
    model.add([9] * 3, 2, priority=2)
    no_preemption(model)


def test_off_nobody_makes_way() -> None:
    model = preemptive(levels=0, max_seqs=1)
    low_ones(model, 1, length=3)
    model.add([9] * 3, 2, priority=100)
    no_preemption(model)


def test_one_that_waited_long_enough_to_rank_first_keeps_its_place() -> None:
    """Fault: levels alone decide; the victim ranks first, comes back and they thrash."""
    model = preemptive(max_seqs=1, aging_steps=1)
    model.add([1], 20)
    for _ in range(6):
        model.step()
    model.add([9], 2, priority=5)
    no_preemption(model)


def test_fcfs_has_no_levels() -> None:
    """Fault: under FCFS an earlier arrival of high priority throws out a later one."""
    model = preemptive(policy="fcfs", max_seqs=1)
    low_ones(model, 1, length=3)
    model.add([9], 2, priority=9, arrival=-5)
    no_preemption(model)


def test_nobody_is_preempted_when_it_would_not_be_enough() -> None:
    """Fault: the less urgent lose their blocks, and the newcomer still waits."""
    model = preemptive(blocks=6)
    model.add([1] * 15, 3, priority=5)
    low_ones(model, 1, length=7)
    assert model.scheduler.blocks.free_blocks == 0
    model.add([9] * 9, 2, priority=6)
    no_preemption(model)


def test_the_tail_protects_all_before_it() -> None:
    """Fault: one is preempted while another that ranks lower runs on; either may starve."""
    model = preemptive(levels=6, max_seqs=2)
    older = model.add([1], 9, arrival=-100)
    model.add([2], 9, priority=5)
    model.step()
    assert model.scheduler.running()[0] == older
    model.add([9], 2, priority=6, arrival=-200)
    no_preemption(model)


@pytest.mark.parametrize(("length", "enters"), [(7, True), (8, False)])
def test_a_whole_prompt_that_this_step_has_no_budget_for_preempts_nobody(
    length: int, enters: bool
) -> None:
    """Fault: a victim goes, and its place stays empty for a step, or for many."""
    model = preemptive(max_batch_tokens=8, max_seqs=2)
    low = low_ones(model, 2, length=3)
    model.add([9] * length, 2, priority=2)
    model.step()
    assert model.plans[-1].preempted == ([low[1]] if enters else [])
    check_answers(model)


def test_budget_alone_preempts_nobody() -> None:
    model = preemptive(max_batch_tokens=2)
    low_ones(model, 2, length=1)
    model.add([9], 2, priority=9)
    no_preemption(model)


# ---- bounds -------------------------------------------------------------------------------


def test_a_request_makes_way_only_so_often() -> None:
    """Fault: with urgent requests coming for ever, one is recomputed for ever."""
    model = preemptive(max_seqs=1, max_admission_preemptions=2, aging_steps=1000)
    low = model.add([1] * 5, 4)
    model.step()
    while low not in model.reasons:
        if low in model.scheduler.running():
            model.add([9], 1, priority=2)
        model.step()
    assert [id for plan in model.plans for id in plan.preempted] == [low, low]
    check_answers(model)


def test_preemptions_for_a_decodes_block_do_not_count() -> None:
    """Fault: a request that memory threw out cannot make way for an urgent one any more."""
    model = preemptive(blocks=6, max_seqs=2, max_admission_preemptions=1)
    first, second = low_ones(model, 2, length=7)
    model.run_until_preempted(1)
    assert model.plans[-1].preempted == [second]
    while second not in model.scheduler.running():
        model.step()
    assert first in model.reasons
    model.add([9] * 13, 2, priority=9)
    model.step()
    assert model.plans[-1].preempted == [second]
    check_answers(model)
    stats = model.scheduler.stats()
    assert (stats.preemptions, stats.admission_preemptions) == (2, 1)


def test_victims_do_not_fill_the_queue() -> None:
    """Fault: who made way is refused its way back, or takes a newcomer's place in the queue."""
    model = preemptive(max_seqs=1, max_waiting=1)
    low_ones(model, 1, length=3)
    model.add([9], 2, priority=5)
    model.step()
    assert model.scheduler.stats().waiting == 1
    model.add([5], 1)
    with pytest.raises(QueueFull):
        model.add([6], 1)
    check_answers(model)


@pytest.mark.parametrize("aborted", ["victim", "newcomer", "both"])
def test_abort_in_the_step_that_preempts(aborted: str) -> None:
    """Fault: blocks freed twice or never, or a token for nobody."""
    model = preemptive(blocks=6, max_seqs=2)
    first, second = low_ones(model, 2, length=7)
    urgent = model.add([9] * 5, 2, priority=5)
    plan = model.scheduler.schedule()
    assert plan.preempted == [second]
    outputs = model.forward(plan)
    gone = {"victim": {second}, "newcomer": {urgent}, "both": {second, urgent}}[aborted]
    for id in gone:
        model.scheduler.abort(id)
    events = model.finish(plan, outputs)
    assert {event.id for event in events} == {first, urgent} - gone
    check_answers(model)
    assert set(model.reasons) == {first, second, urgent} - gone
