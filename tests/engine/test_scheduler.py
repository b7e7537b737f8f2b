"""The scheduler's contract, on a model whose answers are known."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.prefill import Chunked, WholePrompt
from engine.scheduler import (
    Chunk,
    EmptyPrompt,
    Finished,
    FinishReason,
    NeverFits,
    PromptTooLong,
    QueueFull,
    Request,
    SchedPolicy,
    ScheduleOutput,
    StepOutput,
    Token,
)
from tests.engine.fake_model import FakeModel, answer, make_scheduler


def prompts(count: int, longest: int = 12) -> list[list[int]]:
    """Return ``count`` different prompts of 1 to ``longest`` tokens."""
    return [[10 * i + j for j in range(1 + (7 * i) % longest)] for i in range(count)]


def test_hand_example_schedule() -> None:
    """Fault: a step plans other rows, blocks or events than the rules work out by hand."""
    scheduler = make_scheduler(blocks=6, max_batch_tokens=8, max_seqs=2)
    blocks = scheduler.blocks
    a = scheduler.add(Request([1, 2, 3, 4, 5], 3))
    b = scheduler.add(Request([1, 2, 3], 2))
    c = scheduler.add(Request([1, 2], 1))

    plan = scheduler.schedule()
    assert plan == ScheduleOutput([Chunk(a, 0, 5, True), Chunk(b, 0, 3, True)], [], [])
    assert list(blocks.block_table(a)) == [0, 1]
    assert list(blocks.block_table(b)) == [2]
    outputs = [StepOutput(a, 10), StepOutput(b, 20)]
    assert scheduler.on_step(outputs) == [Token(a, 10), Token(b, 20)]

    plan = scheduler.schedule()
    assert plan == ScheduleOutput([], [a, b], [])
    assert scheduler.on_step([StepOutput(a, 11), StepOutput(b, 21)]) == [
        Token(a, 11),
        Token(b, 21),
        Finished(b, FinishReason.LENGTH),
    ]
    assert blocks.free_blocks == 4

    plan = scheduler.schedule()
    assert plan == ScheduleOutput([Chunk(c, 0, 2, True)], [a], [])
    assert list(blocks.block_table(c)) == [2]
    assert scheduler.on_step([StepOutput(c, 30), StepOutput(a, 12)]) == [
        Token(c, 30),
        Finished(c, FinishReason.LENGTH),
        Token(a, 12),
        Finished(a, FinishReason.LENGTH),
    ]
    assert blocks.free_blocks == 6
    assert not scheduler.has_unfinished()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_request_finishes_and_no_block_leaks(data: st.DataObject) -> None:
    """Fault: some mix of sizes, priorities and pressure hangs, leaks or corrupts."""
    pool = data.draw(st.integers(4, 24))
    policy = data.draw(st.sampled_from(list(SchedPolicy)))
    prefill = data.draw(st.sampled_from([WholePrompt(), Chunked(1), Chunked(5), Chunked(64)]))
    scheduler = make_scheduler(
        blocks=pool,
        prefill=prefill,
        policy=policy,
        max_seqs=data.draw(st.integers(1, 6)),
        max_batch_tokens=data.draw(st.integers(1, 24)),
        max_model_len=4 * pool,
    )
    model = FakeModel(scheduler)
    job = st.tuples(
        st.integers(1, 4 * pool - 1), st.integers(1, 12), st.integers(-2, 10), st.integers(0, 3)
    )
    asked: dict[int, tuple[list[int], int]] = {}
    for length, most, priority, steps in data.draw(st.lists(job, min_size=1, max_size=12)):
        prompt = [len(asked) + at for at in range(length)]
        asked[model.add(prompt, most, priority=priority)] = (prompt, most)
        for _ in range(steps):
            model.step()
    model.run()
    for id, (prompt, most) in asked.items():
        count = min(most, 4 * pool - len(prompt))
        assert model.generated[id] == answer(prompt, count)
        assert model.reasons[id] is FinishReason.LENGTH
    stats = scheduler.stats()
    assert (stats.free_blocks, stats.running, stats.waiting) == (pool, 0, 0)
    assert stats.waiting_blocks == 0


def test_priority_runs_first() -> None:
    """Fault: the queue gives out its least urgent request first."""
    model = FakeModel(make_scheduler(policy="priority", max_seqs=1))
    low, high, middle = (model.add([1, 2], 1, priority=p) for p in (0, 10, 5))
    model.run()
    assert list(model.reasons) == [high, middle, low]


def steps_until_low_runs(priority: int, aging: int, limit: int) -> int | None:
    """Return the step in which a priority-0 request runs beside an urgent one a step."""
    model = FakeModel(make_scheduler(policy="priority", max_seqs=1, aging_steps=aging))
    low = model.add([1], 1, priority=0)
    for step in range(limit):
        model.add([2], 1, priority=priority)
        model.step()
        if low in model.reasons:
            return step
    return None


@settings(max_examples=30, deadline=None)
@given(priority=st.integers(1, 12), aging=st.integers(0, 8))
def test_aging_bounds_the_wait(priority: int, aging: int) -> None:
    """Fault: urgent newcomers starve an old request, since only priority is ranked."""
    ran = steps_until_low_runs(priority, aging, limit=priority * aging + 2)
    assert ran is not None
    assert ran >= priority * aging - 1


def test_a_level_of_priority_is_worth_aging_steps_of_waiting() -> None:
    """Fault: the wait is bounded, but not by priority times aging; or not without aging."""
    ran = steps_until_low_runs(priority=10, aging=4, limit=500)
    assert ran is not None
    assert 39 <= ran <= 41
    assert steps_until_low_runs(priority=10, aging=10**9, limit=500) is None


def test_preemption_recomputes_and_keeps_outputs() -> None:
    """Fault: a preempted request loses what it generated, or keeps stale memory."""
    generated = {}
    for pool in (14, 200):
        model = FakeModel(make_scheduler(blocks=pool))
        ids = [model.add(prompt, 20) for prompt in prompts(8)]
        model.run()
        stats = model.scheduler.stats()
        assert (stats.preemptions > 0) == (pool == 14)
        assert (stats.recomputed_tokens > 0) == (pool == 14)
        assert stats.free_blocks == pool
        generated[pool] = [model.generated[id] for id in ids]
    assert generated[14] == generated[200]
    assert generated[14] == [answer(prompt, 20) for prompt in prompts(8)]


@pytest.mark.parametrize("prefill", [WholePrompt(), Chunked(3)])
def test_batched_greedy_equals_single_request(prefill: WholePrompt | Chunked) -> None:
    """Fault: what a request is batched with changes its answer."""
    batched = FakeModel(make_scheduler(max_seqs=33, blocks=300, prefill=prefill))
    ids = [batched.add(prompt, 6) for prompt in prompts(33, longest=30)]
    batched.run()
    for id, prompt in zip(ids, prompts(33, longest=30), strict=True):
        alone = FakeModel(make_scheduler())
        single = alone.add(prompt, 6)
        alone.run()
        assert batched.generated[id] == alone.generated[single] == answer(prompt, 6)


def test_abort_frees_blocks_and_drops_waiting() -> None:
    """Fault: an aborted request keeps its blocks or its place, or comes back."""
    model = FakeModel(make_scheduler(blocks=8, max_seqs=1, max_waiting=2))
    running, waiting = model.add([1] * 9, 8), model.add([2] * 3, 1)
    model.step()
    assert model.scheduler.blocks.free_blocks == 5

    model.scheduler.abort(waiting)
    assert model.scheduler.stats().waiting == 0
    assert model.scheduler.stats().waiting_blocks == 0
    model.scheduler.abort(running)
    assert model.scheduler.blocks.free_blocks == 8
    model.scheduler.abort(running)
    model.scheduler.abort(waiting)
    model.scheduler.abort(12345)

    assert not model.scheduler.has_unfinished()
    assert model.step() == []
    after = model.add([3] * 5, 2)
    model.run()
    assert model.generated[after] == answer([3] * 5, 2)
    assert model.scheduler.blocks.free_blocks == 8


def test_decodes_count_against_the_budget() -> None:
    """Fault: decodes are taken as free, so a step computes more than its budget."""
    model = FakeModel(make_scheduler(max_batch_tokens=8))
    running = [model.add([i], 5) for i in range(3)]
    model.step()
    late = model.add([1] * 6, 1)
    plan = model.scheduler.schedule()
    assert plan == ScheduleOutput([], running, [])
    model.finish(plan, model.forward(plan))

    model.scheduler.abort(late)
    fits = model.add([1] * 5, 1)
    plan = model.scheduler.schedule()
    assert plan == ScheduleOutput([Chunk(fits, 0, 5, True)], running, [])


def test_stop_finishes_with_stop() -> None:
    """Fault: a stop is overlooked, loses its token, or is reported as length."""
    said = answer([1, 2, 3], 8)
    model = FakeModel(make_scheduler(), stop_token=said[2])
    id = model.add([1, 2, 3], 8)
    model.run()
    assert model.generated[id] == said[:3]
    assert model.reasons == {id: FinishReason.STOP}

    # In the very step that also reaches max_tokens, stop is the reason.
    model = FakeModel(make_scheduler(), stop_token=said[2])
    id = model.add([1, 2, 3], 3)
    model.run()
    assert model.reasons == {id: FinishReason.STOP}


def test_admission_refuses_what_can_never_run() -> None:
    """Fault: a request that nothing can serve is queued, and hangs with all behind it."""
    scheduler = make_scheduler(blocks=6, max_model_len=32, max_waiting=1)
    with pytest.raises(EmptyPrompt):
        scheduler.add(Request([], 4))
    with pytest.raises(PromptTooLong) as too_long:
        scheduler.add(Request([1] * 32, 1))
    assert (too_long.value.tokens, too_long.value.limit) == (32, 32)
    with pytest.raises(NeverFits) as never:
        scheduler.add(Request([1] * 20, 5))
    assert (never.value.blocks, never.value.total) == (7, 6)
    assert scheduler.unfinished() == 0

    scheduler.add(Request([1] * 20, 4))
    with pytest.raises(QueueFull) as full:
        scheduler.add(Request([1], 1))
    assert (full.value.waiting, full.value.limit) == (1, 1)
    assert scheduler.unfinished() == 1
