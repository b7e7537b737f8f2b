"""The scheduler's rules where two of them meet."""

import pytest

from engine.prefill import Chunked, WholePrompt
from engine.request import InvalidParam
from engine.scheduler import (
    Chunk,
    Finished,
    FinishReason,
    NeverFits,
    PromptTooLong,
    QueueFull,
    Request,
    SchedPolicy,
    ScheduleOutput,
    SchedulerConfig,
    StepOutput,
    Token,
)
from tests.engine.fake_model import FakeModel, answer, make_scheduler


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_seqs", 0),
        ("max_batch_tokens", 0),
        ("max_waiting", -1),
        ("aging_steps", -1),
        ("max_model_len", 1),
        ("max_seqs", 2.0),
        ("admission_preemption", -1),
        ("max_admission_preemptions", 0),
        ("policy", "lottery"),
    ],
)
def test_a_config_that_cannot_work_is_refused(field: str, value: object) -> None:
    """Fault: a wrong setting shows as a hang under load instead of an error at start."""
    with pytest.raises(InvalidParam, match=field):
        SchedulerConfig(**{field: value})  # type: ignore[arg-type]


def test_a_policy_given_as_text_is_the_policy() -> None:
    """Fault: "priority" from a settings file is compared by identity and means FCFS."""
    config = SchedulerConfig(4, 8, 2, "priority", 3, 16)  # type: ignore[arg-type]
    assert config.policy is SchedPolicy.PRIORITY


def test_nothing_to_generate_is_refused() -> None:
    """Fault: a request without room for one token gets one all the same."""
    scheduler = make_scheduler()
    for request in (Request([1], 0), Request([1], -1), Request([1], 2, generated=[5, 6])):
        with pytest.raises(InvalidParam):
            scheduler.add(request)
    assert not scheduler.has_unfinished()


def test_generated_elsewhere_counts_as_generated() -> None:
    """Fault: a resumed request gets max_tokens again, or goes on from its prompt alone."""
    whole = answer([1, 2, 3], 6)
    model = FakeModel(make_scheduler())
    id = model.add([1, 2, 3], 6, generated=whole[:4])
    assert list(model.scheduler.tokens(id)) == [1, 2, 3, *whole[:4]]
    assert model.scheduler.prompt_len(id) == 3
    model.step()
    assert model.plans[0].prefill == [Chunk(id, 0, 7, True)]
    model.run()
    assert model.generated[id] == whole[4:]
    assert model.reasons[id] is FinishReason.LENGTH


def test_generated_elsewhere_counts_against_the_context() -> None:
    """Fault: a resumed request is longer than the context, or charged twice for memory."""
    scheduler = make_scheduler(blocks=3, max_model_len=8)
    with pytest.raises(PromptTooLong) as refused:
        scheduler.add(Request([1] * 5, 9, generated=[1] * 3))
    assert (refused.value.tokens, refused.value.limit) == (8, 8)
    scheduler.add(Request([1] * 5, 9, generated=[1] * 2))

    scheduler = make_scheduler(blocks=3)
    scheduler.add(Request([1] * 5, 7, generated=[1] * 6))
    with pytest.raises(NeverFits):
        scheduler.add(Request([1] * 5, 8, generated=[1] * 6))


def test_the_context_ends_a_request_with_length() -> None:
    """Fault: a request goes on past max_model_len, or is refused for what it might be."""
    model = FakeModel(make_scheduler(blocks=2, max_model_len=8))
    id = model.add([1] * 5, 100)
    model.run()
    assert model.generated[id] == answer([1] * 5, 3)
    assert model.reasons[id] is FinishReason.LENGTH


def test_requests_are_copied() -> None:
    """Fault: the caller's list grows while the engine generates, or the other way."""
    request = Request([1, 2], 3, generated=[4])
    scheduler = make_scheduler()
    id = scheduler.add(request)
    request.prompt.append(9)
    request.generated.append(9)
    assert list(scheduler.tokens(id)) == [1, 2, 4]
    scheduler.schedule()
    scheduler.on_step([StepOutput(id, 5)])
    assert (request.prompt, request.generated) == ([1, 2, 9], [4, 9])


def test_preempted_requests_do_not_fill_the_queue() -> None:
    """Fault: under memory pressure new requests are refused though the queue has room."""
    model = FakeModel(make_scheduler(blocks=6, max_seqs=3, max_waiting=3))
    for i in range(3):
        model.add([i] * 7, 10)
    model.run_until_preempted(2)
    assert model.scheduler.stats().waiting == 2
    fresh = [model.add([5], 1) for _ in range(3)]
    with pytest.raises(QueueFull) as full:
        model.add([6], 1)
    assert (full.value.waiting, full.value.limit) == (3, 3)
    model.scheduler.abort(fresh[0])
    model.add([6], 1)
    model.run()


def test_waiting_blocks_follow_the_queue() -> None:
    """Fault: the router is told of blocks that nobody waits for, and holds back for ever."""
    model = FakeModel(make_scheduler(blocks=6, max_seqs=2))
    a, b, c = (model.add([i] * 7, 7) for i in range(3))
    assert model.scheduler.stats().waiting_blocks == 6
    model.step()
    assert model.scheduler.stats().waiting_blocks == 2
    model.run_until_preempted(1)
    assert model.plans[-1].preempted == [b]
    assert model.scheduler.stats().waiting_blocks == 4 + 2
    model.scheduler.abort(b)
    assert model.scheduler.stats().waiting_blocks == 2
    model.scheduler.abort(c)
    assert model.scheduler.stats().waiting_blocks == 0
    model.run()
    assert list(model.reasons) == [a]


def test_outputs_for_the_wrong_rows_are_ignored() -> None:
    """Fault: a late or stray result adds a token to a request that did not ask for it."""
    scheduler = make_scheduler(prefill=Chunked(4))
    id = scheduler.add(Request([1] * 6, 3))
    assert scheduler.on_step([StepOutput(id, 9)]) == []
    assert scheduler.schedule().prefill == [Chunk(id, 0, 4, False)]
    assert scheduler.on_step([StepOutput(id, 9), StepOutput(77, 9)]) == []
    scheduler.schedule()
    assert scheduler.on_step([StepOutput(id, 9)]) == [Token(id, 9)]
    assert scheduler.on_step([StepOutput(id, 9)]) == []
    assert list(scheduler.tokens(id)) == [1] * 6 + [9]


def test_events_come_in_row_order() -> None:
    """Fault: events follow the order in which the runner happened to report."""
    scheduler = make_scheduler()
    a, b = scheduler.add(Request([1], 2)), scheduler.add(Request([2], 2))
    scheduler.schedule()
    scheduler.on_step([StepOutput(b, 20), StepOutput(a, 10)])
    c = scheduler.add(Request([3], 1))
    scheduler.schedule()
    outputs = [StepOutput(b, 21), StepOutput(a, 11), StepOutput(c, 30)]
    assert scheduler.on_step(outputs) == [
        Token(c, 30),
        Finished(c, FinishReason.LENGTH),
        Token(a, 11),
        Finished(a, FinishReason.LENGTH),
        Token(b, 21),
        Finished(b, FinishReason.LENGTH),
    ]


def test_a_row_without_a_result_is_planned_again() -> None:
    """Fault: a failed row leaves a request that is neither decoding nor prefilling."""
    model = FakeModel(make_scheduler())
    a, b = model.add([1, 2], 3), model.add([3, 4], 3)
    for _ in range(2):
        plan = model.scheduler.schedule()
        model.finish(plan, [output for output in model.forward(plan) if output.id == b])
    model.run()
    assert model.generated == {a: answer([1, 2], 3), b: answer([3, 4], 3)}


def test_a_plan_without_results_is_given_up() -> None:
    """Fault: after a failed step the next one skips what was planned."""
    model = FakeModel(make_scheduler())
    id = model.add([1, 2, 3], 2)
    assert model.scheduler.schedule().prefill == [Chunk(id, 0, 3, True)]
    assert model.scheduler.schedule().prefill == [Chunk(id, 0, 3, True)]
    model.run()
    assert model.generated[id] == answer([1, 2, 3], 2)


def test_a_long_whole_prompt_runs_alone() -> None:
    """Fault: a prompt above the budget joins a step with others, or waits for ever."""
    model = FakeModel(make_scheduler(max_batch_tokens=8))
    short, long, after = model.add([1], 2), model.add([2] * 9, 1), model.add([3], 1)
    model.run()
    assert [(plan.prefill, plan.decode) for plan in model.plans] == [
        ([Chunk(short, 0, 1, True)], []),
        ([], [short]),
        ([Chunk(long, 0, 9, True)], []),
        ([Chunk(after, 0, 1, True)], []),
    ]


def test_a_budget_below_the_seats_makes_newcomers_wait() -> None:
    """Fault: more requests are seated than a step can decode, and some stand still."""
    model = FakeModel(make_scheduler(max_batch_tokens=2))
    ids = [model.add([i], 3) for i in range(3)]
    model.run()
    assert [plan.decode for plan in model.plans] == [[], ids[:2], ids[:2], [], ids[2:], ids[2:]]
    assert model.scheduler.stats().preemptions == 0
    assert all(model.generated[id] == answer([id], 3) for id in ids)


def test_phases_go_decodes_then_prefills_then_admissions() -> None:
    """Fault: a newcomer takes the budget that a prompt in progress needs."""
    model = FakeModel(make_scheduler(prefill=Chunked(4), max_batch_tokens=6, policy="priority"))
    decoding = model.add([1], 5)
    model.step()
    long = model.add([2] * 9, 1)
    model.step()
    urgent = model.add([3] * 2, 1, priority=10)
    model.step()
    assert model.plans[-1] == ScheduleOutput(
        [Chunk(long, 4, 4, False), Chunk(urgent, 0, 1, False)], [decoding], []
    )
    model.run()


def test_a_half_prefilled_request_is_preempted_and_starts_over() -> None:
    """Fault: a victim in the middle of its prompt goes on where its blocks no longer are."""
    model = FakeModel(make_scheduler(blocks=6, prefill=Chunked(2)))
    first = model.add([1] * 4, 8)
    second = model.add([2] * 16, 1)
    model.run()
    assert [plan.preempted for plan in model.plans if plan.preempted] == [[second]]
    starts = [chunk.start for plan in model.plans for chunk in plan.prefill if chunk.id == second]
    assert starts.count(0) == 2
    stats = model.scheduler.stats()
    assert 0 < stats.recomputed_tokens < 16
    assert model.generated == {first: answer([1] * 4, 8), second: answer([2] * 16, 1)}


def test_a_preempted_request_is_weighed_whole_when_it_returns() -> None:
    """Fault: what was computed before a preemption is still taken as done at admission."""
    model = FakeModel(make_scheduler(blocks=9, max_batch_tokens=9))
    small, large = model.add([1], 16), model.add([2] * 4, 10)
    victim = model.add([3] * 4, 12)
    model.run_until_preempted(1)
    assert model.plans[-1].preempted == [victim]
    while small not in model.reasons:
        assert victim not in model.scheduler.running()
        model.step()
    assert large in model.reasons
    assert model.scheduler.blocks.free_blocks == 9
    model.step()
    assert model.plans[-1].prefill == [Chunk(victim, 0, 13, True)]
    model.run()
    assert model.generated[victim] == answer([3] * 4, 12)


def test_the_lowest_decode_preempts_itself() -> None:
    """Fault: the lowest request takes a block from a higher one, or is run without room."""
    model = FakeModel(make_scheduler(blocks=5, max_seqs=2))
    high, low = model.add([1] * 9, 4), model.add([2] * 8, 4)
    model.step()
    model.step()
    assert model.plans[-1] == ScheduleOutput([], [high], [low])
    assert model.scheduler.running() == [high]
    model.run()
    assert model.scheduler.stats().preemptions == 1
    assert model.generated == {high: answer([1] * 9, 4), low: answer([2] * 8, 4)}


def test_an_urgent_newcomer_is_not_preempted_for_an_older_decode() -> None:
    """Fault: the victim is the last one admitted instead of the lowest ranked."""
    model = FakeModel(make_scheduler(blocks=4, max_seqs=2, policy="priority"))
    low = model.add([1] * 7, 5, priority=0)
    model.step()
    urgent = model.add([2] * 8, 2, priority=10)
    model.step()
    model.step()
    assert model.plans[-1].preempted == [low]
    model.run()
    assert list(model.reasons) == [urgent, low]


@pytest.mark.parametrize("prefill", [WholePrompt(), Chunked(2)])
def test_fcfs_ignores_priority_but_not_arrival(prefill: WholePrompt | Chunked) -> None:
    """Fault: FCFS orders by priority, or by id although an earlier arrival is given."""
    model = FakeModel(make_scheduler(max_seqs=1, prefill=prefill))
    late = model.add([1], 1, priority=10, arrival=5)
    early = model.add([2], 1, priority=0, arrival=3)
    model.run()
    assert list(model.reasons) == [early, late]


def test_the_clock_gives_the_arrival() -> None:
    """Fault: a wall clock is passed in and steps are counted all the same."""
    ticks = iter([50, 20])
    model = FakeModel(make_scheduler(max_seqs=1, clock=lambda: next(ticks)))
    late, early = model.add([1], 1), model.add([2], 1)
    model.run()
    assert list(model.reasons) == [early, late]


def test_an_ended_request_is_unknown() -> None:
    """Fault: ended requests stay in memory for as long as the process lives."""
    model = FakeModel(make_scheduler())
    id = model.add([1], 1)
    model.run()
    for ask in (model.scheduler.tokens, model.scheduler.prompt_len):
        with pytest.raises(KeyError):
            ask(id)
    model.scheduler.abort(id)
    assert model.scheduler.unfinished() == 0
