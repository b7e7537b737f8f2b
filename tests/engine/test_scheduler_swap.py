"""Who is preempted goes on from host memory, and says what it would have said."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.invariants import InvariantBroken, check_invariants
from engine.prefill import Chunked
from engine.scheduler import Chunk, SchedPolicy
from tests.engine.fake_model import FakeModel, answer, make_scheduler

# Of each request: steps after the one before, tokens of prompt, tokens to make, priority.
Arrival = tuple[int, int, int, int]


def swapping(slots: int = 16, **limits: object) -> FakeModel:
    """A model over a scheduler of six blocks of 4 tokens, and host memory for ``slots`` more."""
    return FakeModel(make_scheduler(slots=slots, **{"blocks": 6, **limits}))  # type: ignore[arg-type]


def check_answers(model: FakeModel) -> None:
    """Run to the end: all say what they would have said, and all is free."""
    model.run()
    for id in model.reasons:
        assert model.generated[id] == answer(*model.asked[id])
    scheduler = model.scheduler
    assert scheduler.swap is not None
    assert scheduler.blocks.free_blocks == scheduler.blocks.total_blocks
    assert scheduler.swap.free_slots == scheduler.swap.total_slots


def preempted(model: FakeModel) -> int:
    """Two requests that do not fit together to their ends; return the one that has to go."""
    for i in range(2):
        model.add([i] * 10, 8)
    model.run_until_preempted(1)
    return model.plans[-1].preempted[0]


def test_what_was_computed_comes_back_and_is_not_computed_again() -> None:
    """Fault: it is swapped and computed all the same."""
    model = swapping()
    victim = preempted(model)
    assert model.scheduler.swap is not None
    assert model.scheduler.swap.kept(victim) == 12
    while victim not in model.scheduler.running():
        model.step()
    (chunk,) = model.plans[-1].prefill
    assert chunk == Chunk(victim, 12, 1, True)
    check_answers(model)
    stats = model.scheduler.stats()
    assert (stats.recomputed_tokens, stats.restored_tokens) == (0, 12)


def test_with_too_few_slots_it_is_computed_again() -> None:
    model = swapping(slots=2)
    victim = preempted(model)
    assert model.scheduler.swap is not None
    assert model.scheduler.swap.kept(victim) == 0
    check_answers(model)
    stats = model.scheduler.stats()
    assert (stats.recomputed_tokens, stats.restored_tokens) == (12, 0)


def test_a_swapped_prompt_needs_budget_for_what_is_left_alone() -> None:
    """Fault: it waits for a step that has room for all that it need not compute."""
    model = swapping(max_batch_tokens=13)
    victim = preempted(model)
    model.add([7], 8, arrival=-1)
    while victim not in model.scheduler.running():
        model.step()
    assert len(model.plans[-1].decode) >= 1, "it would have waited for a step of its own"
    check_answers(model)


def test_an_abort_while_it_waits_frees_its_slots() -> None:
    model = swapping()
    model.scheduler.abort(preempted(model))
    assert model.scheduler.swap is not None
    assert model.scheduler.swap.free_slots == 16
    check_answers(model)


def test_one_that_made_way_in_the_middle_of_its_prompt_goes_on_there() -> None:
    """Fault: what is in host memory ends where its prompt does, or nowhere."""
    model = swapping(
        prefill=Chunked(4), policy="priority", admission_preemption=2, max_seqs=1, aging_steps=9
    )
    low = model.add([1] * 15, 3)
    model.step()
    model.step()
    model.add([2] * 6, 2, priority=2)
    model.step()
    assert model.plans[-1].preempted == [low]
    while low not in model.scheduler.running():
        model.step()
    assert model.plans[-1].prefill == [Chunk(low, 8, 4, False)]
    check_answers(model)


def test_copies_of_one_step_are_made_in_the_order_in_which_they_were_ordered() -> None:
    """Fault: all copies out are made first, or all in: one overwrites what another reads."""
    model = swapping(
        4, policy="priority", admission_preemption=2, max_seqs=1, max_admission_preemptions=9,
        aging_steps=9,
    )  # fmt: skip
    low = model.add([1] * 14, 6)
    model.step()
    model.add([2] * 5, 1, priority=2)
    model.step()
    # The plan in which it comes back is given up, and in the next it makes way again.
    model.scheduler.schedule()
    model.add([3] * 17, 1, priority=2)
    model.scheduler.schedule()
    # That one is aborted, so it comes back once more, and goes for a last one.
    model.scheduler.abort(2)
    model.scheduler.schedule()
    model.add([4] * 17, 1, priority=2)
    model.step()
    assert [copy.out for copy in model.copied] == [False, True, False, True]
    back, out, *_ = model.copied
    assert set(back.blocks) & set(out.blocks)
    assert set(back.slots) & set(out.slots)
    check_answers(model)
    assert low in model.reasons


def test_a_prefix_cache_gives_what_it_has_and_host_memory_the_rest() -> None:
    """Fault: shared blocks are written to, or what the cache lost is taken to be there."""
    model = swapping(cache=True)
    victim = preempted(model)
    while victim not in model.scheduler.running():
        model.step()
    check_answers(model)
    assert model.scheduler.stats().recomputed_tokens == 0


def test_the_books_notice_slots_of_one_that_runs() -> None:
    model = swapping()
    id = model.add([1] * 5, 4)
    model.step()
    assert model.scheduler.swap is not None
    model.scheduler.swap.keep(id, 5, [0, 1])
    with pytest.raises(InvariantBroken, match="in host memory"):
        check_invariants(model.scheduler)


arrivals = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 20), st.integers(2, 10), st.integers(0, 8)),
    min_size=4,
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(
    jobs=arrivals,
    slots=st.sampled_from([0, 3, 8, 200]),
    chunk=st.sampled_from([None, 3, 64]),
    cache=st.booleans(),
    policy=st.sampled_from(list(SchedPolicy)),
    levels=st.sampled_from([0, 1]),
    passes=st.sampled_from([0, 2]),
    shared=st.integers(0, 8),
)
def test_any_load(
    jobs: list[Arrival],
    slots: int,
    chunk: int | None,
    cache: bool,
    policy: SchedPolicy,
    levels: int,
    passes: int,
    shared: int,
) -> None:
    """Fault: some load reads what another left there, loses a slot, or never ends."""
    model = swapping(
        slots,
        blocks=8,
        cache=cache,
        prefill=None if chunk is None else Chunked(chunk),
        policy=policy,
        max_seqs=4,
        max_batch_tokens=32,
        admission_preemption=levels,
        max_passes=passes,
    )
    for at, (steps, length, most, priority) in enumerate(jobs):
        for _ in range(steps):
            model.step()
        prompt = [9] * min(shared, length - 1)
        prompt += [at] * (length - len(prompt))
        model.add(prompt, most, priority=priority)
    check_answers(model)
    stats = model.scheduler.stats()
    if slots == 200:
        assert stats.recomputed_tokens == 0
    if slots == 0:
        assert stats.restored_tokens == 0
