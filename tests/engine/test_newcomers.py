"""Requests that wait for others' blocks: nobody is held up by them, nor are they by others."""

import pytest

from engine.newcomers import PATIENCE
from engine.prefill import Chunked
from tests.engine.fake_model import FakeModel, answer, make_scheduler

LONG = list(range(41))
"""Its first 40 tokens fill ten blocks; the last has to be computed by whoever has it."""


def caching(**limits: object) -> FakeModel:
    """A model over a prefix cache in blocks of 4 tokens; prompts are cut to 8 tokens."""
    return FakeModel(make_scheduler(cache=True, prefill=Chunked(8), **limits))  # type: ignore[arg-type]


def waiting_pair(model: FakeModel, **fields: object) -> tuple[int, int]:
    """One whose prompt takes six steps, and one that waits for it."""
    return model.add(LONG, 2, **fields), model.add(LONG, 2, **fields)


def parts(model: FakeModel) -> list[tuple[int, int, int]]:
    """Each chunk of the last plan as (id, start, len)."""
    return [(chunk.id, chunk.start, chunk.len) for chunk in model.plans[-1].prefill]


def check_answers(model: FakeModel) -> None:
    model.run()
    for id in model.reasons:
        assert model.generated[id] == answer(*model.asked[id])


def test_those_behind_start_past_one_that_waits() -> None:
    """Fault: a step runs half empty while strangers wait until another's prompt is computed."""
    model = caching()
    long, same = waiting_pair(model)
    other = model.add(range(80, 86), 2)
    model.step()
    assert parts(model) == [(long, 0, 8), (other, 0, 6)]
    for _ in range(4):
        model.step()
    assert same not in model.scheduler.running()
    model.step()
    assert (parts(model), model.plans[-1].decode) == ([(same, 40, 1)], [long])
    assert model.scheduler._roster.states[same].passed == 0
    check_answers(model)


def test_a_seat_is_kept_for_one_that_waits() -> None:
    """Fault: who starts past it takes the last seat, for as long as its answer takes."""
    model = caching(max_seqs=3)
    long, same = waiting_pair(model)
    others = [model.add([80 + i] * 3, 30) for i in range(2)]
    model.step()
    assert [id for id, _, _ in parts(model)] == [long, others[0]]
    for _ in range(5):
        model.step()
    assert (same, 40, 1) in parts(model)
    check_answers(model)


def test_blocks_are_kept_for_one_that_waits() -> None:
    """Fault: who starts past it takes the last blocks."""
    model = caching(blocks=24)
    long, same = waiting_pair(model)  # eleven blocks each; two are left
    others = [model.add([80 + i] * 5, 3) for i in range(2)]  # two blocks each
    model.step()
    assert [id for id, _, _ in parts(model)] == [long, others[0]]
    check_answers(model)
    assert same in model.reasons
    assert model.scheduler.stats().preemptions == 0


def test_budget_is_kept_for_one_that_waits() -> None:
    """Fault: long prompts that started past it go on before it, and take all of each step."""
    model = caching(max_batch_tokens=24, blocks=200)
    long = model.add([*LONG[:40], *range(500, 560)], 2)
    same = model.add(LONG, 2)
    other, _ = [model.add([80 + i] * 60, 2) for i in range(2)]
    for step in range(5):
        model.step()
        # The second of the others would take 7 tokens now, and 8 in the next step.
        assert parts(model) == [(long, 8 * step, 8), (other, 8 * step, 8)]
    model.step()
    assert (same, 40, 1) in parts(model)
    check_answers(model)


def test_an_urgent_one_behind_takes_a_place() -> None:
    """Fault: nobody makes way while the head of the queue waits for others' blocks."""
    model = caching(policy="priority", admission_preemption=2, max_seqs=3, aging_steps=9)
    model.add([99] * 3, 30)
    long, same = waiting_pair(model, priority=5)
    model.step()
    urgent = model.add(range(80, 86), 2, priority=4)
    model.step()
    assert model.plans[-1].preempted == [0]
    assert parts(model) == [(long, 8, 8), (urgent, 0, 6)]
    for _ in range(4):
        model.step()
    assert (same, 40, 1) in parts(model)
    check_answers(model)


def test_as_many_make_way_as_leave_what_is_kept() -> None:
    """Fault: blocks that are kept count as free, so nobody makes way, and nobody starts."""
    model = caching(policy="priority", admission_preemption=2, blocks=24, aging_steps=9)
    low = model.add([99] * 5, 3)  # two blocks
    long, same = waiting_pair(model, priority=5)  # eleven each
    model.step()
    urgent = model.add([80] * 9, 2, priority=4)  # three; eleven less two are kept of eleven
    model.step()
    assert model.plans[-1].preempted == [low]
    assert parts(model) == [(long, 8, 8), (urgent, 0, 8)]
    check_answers(model)
    assert same in model.reasons


def test_a_gap_is_filled_past_one_that_waits_without_room() -> None:
    """Fault: one that could not start anyway, since it lacks a block, holds up all the same."""
    model = caching(blocks=16, max_passes=1)
    long, same = waiting_pair(model)
    small = model.add([80] * 5, 2)
    model.step()
    assert [id for id, _, _ in parts(model)] == [long, small]
    assert model.scheduler._roster.states[same].passed == 1
    check_answers(model)


def test_it_waits_no_longer_than_is_worth_it() -> None:
    """Fault: it waits for a longer and longer prompt, or for one that hardly moves."""
    model = caching(max_model_len=600, blocks=200)
    tokens = list(range(8 * (PATIENCE + 20)))
    long, same = model.add(tokens, 2), model.add(tokens, 2)
    for _ in range(PATIENCE):
        model.step()
        assert [id for id, _, _ in parts(model)] == [long]
    model.step()
    assert parts(model) == [(long, 8 * PATIENCE, 8), (same, 8 * PATIENCE, 8)]
    check_answers(model)


@pytest.mark.parametrize("ends", [True, False])
def test_who_waits_is_in_the_books_of_those_who_wait(ends: bool) -> None:
    """Fault: it is out of the queue while others are looked at, and not put back."""
    model = caching()
    long, same = waiting_pair(model)
    model.step()
    assert model.scheduler.stats().waiting == 1
    model.scheduler.abort(same if ends else long)
    check_answers(model)
    assert set(model.reasons) == {long if ends else same}
    assert model.scheduler.stats().waiting == 0
