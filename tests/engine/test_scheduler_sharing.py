"""The scheduler over a prefix cache: less is computed, and nothing else changes."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.prefill import Chunked, PrefillPolicy, WholePrompt
from engine.scheduler import Chunk, ScheduleOutput
from tests.engine.fake_model import FakeModel, answer, make_scheduler


def caching(**settings: object) -> FakeModel:
    """A model over a prefix cache in blocks of 4 tokens."""
    return FakeModel(make_scheduler(cache=True, **settings))  # type: ignore[arg-type]


def computed(plan: ScheduleOutput) -> list[tuple[int, int, int]]:
    """Each chunk as (id, start, len)."""
    return [(chunk.id, chunk.start, chunk.len) for chunk in plan.prefill]


def check_answers(model: FakeModel) -> None:
    """Every request that ended says what it says alone."""
    for id in model.reasons:
        prompt, count = model.asked[id]
        assert model.generated[id] == answer(prompt, count)


def test_the_second_turn_of_a_chat_computes_what_is_new() -> None:
    """Fault: an answer's blocks are forgotten when it ends."""
    model = caching()
    first = model.add(range(10), max_tokens=7)
    model.run()
    turn = [*range(10), *model.generated[first], 50, 51]
    second = model.add(turn)
    model.step()
    # 16 of the 17 tokens have K and V: that of the last one was never computed.
    assert computed(model.plans[-1]) == [(second, 16, 3)]
    assert model.scheduler.cached_tokens(second) == 16
    model.run()
    check_answers(model)
    stats = model.scheduler.stats()
    assert (stats.queried_tokens, stats.found_tokens) == (10 + 19, 16)


def test_a_prompt_is_found_while_its_request_still_runs() -> None:
    """Fault: blocks can be found only after their request has ended."""
    model = caching()
    model.add(range(9), max_tokens=20)
    model.step()
    late = model.add([*range(8), 70, 71], max_tokens=20)
    model.step()
    assert computed(model.plans[-1]) == [(late, 8, 2)]
    tables = [list(model.scheduler.blocks.block_table(id)) for id in model.scheduler.running()]
    assert tables[0][:2] == tables[1][:2]
    assert not set(tables[0][2:]) & set(tables[1][2:])
    model.run()
    check_answers(model)


def test_the_same_prompt_again_leaves_its_last_token_to_compute() -> None:
    """Fault: all of a prompt is found, so nothing is computed and there are no logits; or the
    block that the newcomer writes to is another's."""
    model = caching()
    model.add(range(8))
    model.run()
    again = model.add(range(8), max_tokens=6)
    model.step()
    assert computed(model.plans[-1]) == [(again, 4, 4)]
    model.run()
    check_answers(model)


def test_choices_of_one_prompt_compute_it_once() -> None:
    """Fault: requests of one step cannot find what each of them computes in that step, so each
    computes all of it."""
    model = caching(prefill=Chunked(16), max_batch_tokens=64)
    ids = [model.add(range(30), max_tokens=3) for _ in range(3)]
    model.step()
    assert computed(model.plans[-1]) == [(ids[0], 0, 16)]
    model.step()
    # The last block is not full, so it is everyone's own.
    assert computed(model.plans[-1]) == [(ids[0], 16, 14)]
    model.step()
    assert computed(model.plans[-1]) == [(ids[1], 28, 2), (ids[2], 28, 2)]
    model.run()
    check_answers(model)


def test_a_short_common_beginning_is_not_worth_waiting_for() -> None:
    """Fault: a burst of chats with one short system prompt stands in line for a step."""
    model = caching()
    ids = [model.add([*range(4), *range(10 * id, 10 * id + 9)]) for id in (1, 2, 3)]
    model.step()
    assert computed(model.plans[-1]) == [(id, 0, 13) for id in ids]
    model.run()
    check_answers(model)


def test_nobody_waits_for_what_will_not_come() -> None:
    """Fault: the one that computes the common prompt is aborted, and the others wait for ever."""
    model = caching(prefill=Chunked(8))
    first, second = model.add(range(20)), model.add(range(20))
    model.step()
    model.scheduler.abort(first)
    model.step()
    assert computed(model.plans[-1]) == [(second, 8, 8)]
    model.run()
    check_answers(model)


def test_blocks_of_a_step_without_results_are_not_found() -> None:
    """Fault: a hit on K and V that were planned and never computed."""
    model = caching()
    first = model.add(range(9))
    plan = model.scheduler.schedule()
    assert plan.prefill == [Chunk(first, 0, 9, True)]
    model.scheduler.abort(first)
    model.scheduler.on_step([])
    second = model.add(range(9))
    model.step()
    assert computed(model.plans[-1]) == [(second, 0, 9)]


def test_who_wants_all_of_it_computed_finds_nothing() -> None:
    """Fault: a request that asks for its prompt's log-probabilities skips tokens that it has to
    tell of."""
    model = caching()
    model.add(range(9))
    model.run()
    whole = model.add(range(9), skip_cache=True)
    model.step()
    assert computed(model.plans[-1]) == [(whole, 0, 9)]
    other = model.add(range(9))
    model.step()
    assert computed(model.plans[-1]) == [(other, 8, 1)]
    assert model.scheduler.stats().queried_tokens == 18


def test_what_is_found_counts_from_when_it_is_used() -> None:
    """Fault: one loses its seat in the step in which it got it, and what it found then still
    counts when it comes back and computes all."""
    model = caching(blocks=8, policy="priority", admission_preemption=2, max_seqs=1, aging_steps=9)
    model.add(range(9), max_tokens=1)
    model.run()
    late = model.add(range(9), max_tokens=2)
    model.scheduler.schedule()
    assert model.scheduler.cached_tokens(late) == 8
    model.add(range(50, 81), max_tokens=1, priority=5)  # takes its place, and all blocks
    model.run()
    assert [part for plan in model.plans for part in computed(plan) if part[0] == late] == [
        (late, 0, 9)
    ]
    stats = model.scheduler.stats()
    assert (stats.queried_tokens, stats.found_tokens) == (9 + 9 + 31, 0)
    assert stats.recomputed_tokens == 0
    check_answers(model)


def test_who_wanted_all_of_it_computed_finds_it_once_that_has_been_told() -> None:
    """Fault: one that is preempted while it decodes computes its prompt once more in full."""
    model = caching(policy="priority", admission_preemption=2, max_seqs=1, aging_steps=9)
    low = model.add(range(9), max_tokens=4, skip_cache=True)
    model.step()
    model.add(range(50, 53), max_tokens=1, priority=5)
    model.run()
    parts = [part for plan in model.plans for part in computed(plan) if part[0] == low]
    assert parts == [(low, 0, 9), (low, 8, 2)]
    check_answers(model)


def test_requests_of_different_salts_share_nothing() -> None:
    """Fault: the scheduler forgets a request's salt on the way."""
    model = caching()
    for salt, start in ((b"a", 0), (b"b", 0), (b"a", 8)):
        id = model.add(range(9), salt=salt)
        model.step()
        assert computed(model.plans[-1]) == [(id, start, 9 - start)]
        model.run()


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    """Fault: recomputing costs as much as without a cache."""
    model = caching(blocks=6, max_seqs=2)
    model.add(range(8), max_tokens=9)
    model.add(range(50, 58), max_tokens=9)
    model.run()
    stats = model.scheduler.stats()
    assert stats.preemptions > 0
    assert stats.recomputed_tokens < 8
    check_answers(model)


def test_a_whole_prompt_fits_the_budget_if_what_is_new_does() -> None:
    """Fault: a follow-up waits for an empty step because of tokens that nobody will compute."""
    model = caching(max_batch_tokens=12)
    first = model.add(range(10), max_tokens=12)
    model.run()
    model.add(range(90, 92), max_tokens=30)
    model.step()
    turn = [*range(10), *model.generated[first], 50]
    second = model.add(turn)
    model.step()
    assert computed(model.plans[-1]) == [(second, 20, 3)]


def test_as_few_make_way_as_a_newcomer_with_shared_blocks_needs() -> None:
    """Fault: victims for blocks that the newcomer shares, or a newcomer that does not fit when
    they have gone, since their blocks were counted both as free and as found."""
    model = caching(blocks=8, policy="priority", admission_preemption=1)
    model.add(range(9), max_tokens=4)  # holds 3 blocks
    model.add([*range(8), 60], max_tokens=4)  # shares 2 of them, holds 1 more
    model.add(range(80, 89), max_tokens=4)  # holds 3; 1 is free
    model.step()
    model.step()
    urgent = model.add([*range(8), *range(70, 75)], max_tokens=3, priority=9)
    model.step()
    # It needs 4 blocks and shares 2, so 2 are lacking 1: one victim is enough.
    assert len(model.plans[-1].preempted) == 1
    assert computed(model.plans[-1]) == [(urgent, 8, 5)]
    model.run()
    check_answers(model)


def test_nobody_makes_way_for_blocks_that_the_newcomer_has_already() -> None:
    """Fault: what a newcomer shares with a victim counts as gained, so the victim is preempted
    in vain."""
    model = caching(blocks=8, policy="priority", admission_preemption=1)
    model.add(range(9), max_tokens=4)  # holds 3 blocks, of which the newcomer shares 2
    model.add(range(80, 93), max_tokens=3, priority=9)  # holds 4, and ranks before it
    model.step()
    model.add([*range(8), *range(70, 79)], max_tokens=3, priority=5)
    model.step()
    # Five blocks less two are lacking two: one is free, and one more would come free.
    assert model.plans[-1].preempted == []
    model.run()
    check_answers(model)


@dataclass(frozen=True)
class Job:
    """A request: which beginnings it has, what is its own, and what becomes of it."""

    beginnings: tuple[int, ...]
    own: int
    max_tokens: int
    priority: int
    salt: bytes
    skip_cache: bool
    step: int
    abort_after: int | None


jobs = st.lists(
    st.builds(
        Job,
        beginnings=st.lists(st.integers(0, 2), max_size=3).map(tuple),
        own=st.integers(1, 4),
        max_tokens=st.integers(1, 12),
        priority=st.integers(0, 4),
        salt=st.sampled_from([b"", b"", b"", b"a"]),
        skip_cache=st.sampled_from([False, False, False, True]),
        step=st.integers(0, 12),
        abort_after=st.none() | st.none() | st.integers(0, 6),
    ),
    min_size=2,
    max_size=9,
)


@settings(max_examples=120, deadline=None)
@given(
    jobs=jobs,
    policy=st.sampled_from([WholePrompt(), Chunked(3), Chunked(50)]),
    blocks=st.integers(13, 24),
    budget=st.sampled_from([6, 20, 64]),
    levels=st.sampled_from([0, 1, 3]),
    passes=st.sampled_from([0, 2]),
)
def test_sharing_changes_no_answer(
    jobs: list[Job], policy: PrefillPolicy, blocks: int, budget: int, levels: int, passes: int
) -> None:
    """Fault: some order of hits, preemptions and aborts lets a request read what is not its
    own, since a shared block is written, given away, or found before it is computed."""
    model = caching(
        blocks=blocks,
        prefill=policy,
        max_batch_tokens=budget,
        max_seqs=5,
        policy="priority",
        admission_preemption=levels,
        max_passes=passes,
    )
    todo = sorted(jobs, key=lambda job: job.step)
    leaving: dict[int, int] = {}
    for step in range(600):
        while todo and todo[0].step <= step:
            job = todo.pop(0)
            prompt = [100 * place + number for place in job.beginnings for number in range(7)]
            prompt += range(900, 900 + job.own)
            id = model.add(
                prompt, job.max_tokens, priority=job.priority, salt=job.salt,
                skip_cache=job.skip_cache,
            )  # fmt: skip
            if job.abort_after is not None:
                leaving[id] = step + job.abort_after
        for id in [id for id, when in leaving.items() if when == step]:
            model.scheduler.abort(id)
        if not todo and not model.scheduler.has_unfinished():
            break
        model.step()
    assert not model.scheduler.has_unfinished()
    check_answers(model)
    assert set(model.asked) <= set(model.reasons) | set(leaving)
    assert model.scheduler.blocks.free_blocks == blocks
