"""Plans made ahead of the results before them: other plans, the same answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.invariants import check_invariants
from engine.prefill import Chunked, WholePrompt
from engine.prefix_cache import BlockManager
from engine.scheduler import FinishReason, Request, ScheduleOutput, Scheduler, StepOutput
from engine.swap import Copy
from tests.engine.fake_model import FakeModel, answer, check_limits, greedy, make_scheduler


@dataclass
class AheadModel(FakeModel):
    """Drives a scheduler as the engine's overlapping loop does.

    What a step computes is taken down when it takes off, and is computed at last when the
    next plan has been made and requests have been aborted.
    """

    aboard: list[tuple[int, Sequence[int], int, int, list[int], int | None]] | None = None
    copies: list[Copy] = field(default_factory=list)
    broken: set[int] = field(default_factory=set)

    def take_off(self, plan: ScheduleOutput) -> None:
        """Take down tables, positions and tokens; nothing may be missing or unknown."""
        self.plans.append(plan)
        caching = isinstance(self.scheduler.blocks, BlockManager)
        check_limits(self.scheduler.config, plan, caching)
        parts = [(chunk.id, chunk.start, chunk.len, chunk.last) for chunk in plan.prefill]
        parts += [(id, len(self.scheduler.tokens(id)) - 1, 1, True) for id in plan.decode]
        self.aboard = None
        if parts:
            self.copies = self.scheduler.take_copies()
            self.aboard = [
                (
                    id,
                    self.scheduler.blocks.block_table(id),
                    start,
                    start + length,
                    list(self.scheduler.tokens(id)),
                    self.scheduler.prompt_len(id) if last else None,
                )
                for id, start, length, last in parts
            ]

    def compute(self) -> list[StepOutput]:
        """Write K and V of what is aboard, and sample; nothing is there of a broken request."""
        size = self.scheduler.blocks.block_tokens
        outputs = []
        for copy in self.copies:
            for block, slot in zip(copy.blocks, copy.slots, strict=True):
                for offset in range(size):
                    if copy.out:
                        self.host[slot, offset] = self.memory.get((block, offset), -9)
                    else:
                        self.memory[block, offset] = self.host[slot, offset]
        for id, table, start, end, tokens, cut in self.aboard or []:
            for position in range(start, end):
                value = -7 if id in self.broken else tokens[position]
                self.memory[table[position // size], position % size] = value
            if cut is not None and id not in self.broken:
                seen = [self.memory[table[at // size], at % size] for at in range(end)]
                token = self.next_token(seen[:cut], seen[cut:])
                outputs.append(StepOutput(id, token, stop=token == self.stop_token))
        return outputs

    def drop(self, id: int) -> None:
        """Abort a request, of which nothing may be heard any more."""
        self.scheduler.abort(id)
        self.asked.pop(id, None)

    def cycle(self, aborts: Sequence[tuple[int, int]] = (), broken: int | None = None) -> None:
        """From one take-off to the next; ``aborts`` are ids, and before what they come."""

        def at(moment: int) -> None:
            for id, when in aborts:
                if when == moment:
                    self.drop(id)

        if self.aboard is None:
            self.take_off(self.scheduler.schedule())
        at(0)
        self.scheduler.schedule_ahead()
        check_books(self.scheduler)
        at(1)
        if broken is not None and any(part[0] == broken for part in self.aboard or []):
            self.broken.add(broken)
            self.drop(broken)
        outputs = self.compute()
        for event in self.scheduler.on_step(outputs):
            assert event.id in self.asked, "heard of one that is gone"
            if hasattr(event, "token"):
                self.generated[event.id].append(event.token)
            else:
                self.reasons[event.id] = event.reason
        check_invariants(self.scheduler)
        at(2)
        self.take_off(self.scheduler.resume())
        check_invariants(self.scheduler)

    def run(self, steps: int = 2000) -> None:
        for _ in range(steps):
            if not self.scheduler.has_unfinished() and self.aboard is None:
                return
            self.cycle()
        raise AssertionError(f"stuck: {self.scheduler.stats()}")


def check_books(scheduler: Scheduler) -> None:
    """No placeholder among tokens, and every block accounted for, also in between."""
    for id in scheduler.running():
        assert min(scheduler.tokens(id)) >= 0
    check_invariants(scheduler)


def check_answers(model: FakeModel) -> None:
    """Whoever was not aborted says what it says alone, and ends for the same reason."""
    for id, (prompt, count) in model.asked.items():
        alone = answer(prompt, count, model.next_token)
        reason = FinishReason.LENGTH
        if model.stop_token in alone:
            alone = alone[: alone.index(model.stop_token) + 1]
            reason = FinishReason.STOP
        assert (model.generated[id], model.reasons[id]) == (alone, reason)
    assert model.scheduler.blocks.free_blocks == model.scheduler.blocks.total_blocks


def few_words(prompt: Sequence[int], generated: Sequence[int]) -> int:
    """So few that stops are frequent and requests with common prompts share blocks."""
    return greedy(prompt, generated) % 7


moments = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2)), max_size=2)
request = st.tuples(st.integers(1, 14), st.integers(1, 9), st.integers(0, 9), st.booleans())
cycle = st.tuples(st.lists(request, max_size=3), moments, st.none() | st.integers(0, 20))


@settings(max_examples=150, deadline=None)
@given(
    cycles=st.lists(cycle, min_size=1, max_size=25),
    blocks=st.sampled_from([8, 10, 14, 40]),
    chunk=st.sampled_from([None, 2, 5]),
    limits=st.tuples(st.sampled_from([4, 6, 1]), st.sampled_from([16, 7, 3])),
    options=st.tuples(st.sampled_from([0, 2]), st.sampled_from([0, 3])),
    cache=st.booleans(),
    slots=st.sampled_from([None, 2, 9]),
)
def test_any_load_gets_the_answers_of_each_alone(
    cycles: list[tuple[list[tuple[int, int, int, bool]], list[tuple[int, int]], int | None]],
    blocks: int,
    chunk: int | None,
    limits: tuple[int, int],
    options: tuple[int, int],
    cache: bool,
    slots: int | None,
) -> None:
    """Blocks named before they are computed, rows of the gone, unknown tokens, lost memory."""
    scheduler = make_scheduler(
        blocks=blocks,
        block_tokens=3,
        prefill=WholePrompt() if chunk is None else Chunked(chunk),
        cache=cache,
        slots=slots,
        max_seqs=limits[0],
        max_batch_tokens=limits[1],
        policy="priority",
        max_model_len=24,
        admission_preemption=options[0],
        max_passes=options[1],
    )
    model = AheadModel(scheduler, few_words, stop_token=6)
    for requests, aborts, broken in cycles:
        for length, count, priority, common in requests:
            prompt = [1 if common else (7 * at + length) % 5 for at in range(length)]
            model.add(prompt, count, priority=priority)
        model.cycle(aborts, broken)
    model.run()
    check_answers(model)


def test_decodes_are_planned_while_their_last_tokens_are_unknown() -> None:
    model = AheadModel(make_scheduler())
    ids = [model.add([1, 2, 3], 5), model.add([4, 5], 5)]
    model.cycle()
    model.scheduler.schedule_ahead()
    assert [len(model.scheduler.tokens(id)) for id in ids] == [4, 3]
    model.scheduler.on_step(model.compute())
    assert model.scheduler.resume().decode == ids


def test_the_last_token_is_known_to_be_the_last_and_makes_room_at_once() -> None:
    """A request that ends holds its seat for no step more than without overlap."""
    model = AheadModel(make_scheduler(max_seqs=1))
    first, second = model.add([1, 2, 3], 2), model.add([4, 5], 2)
    model.run()
    planned = [([chunk.id for chunk in plan.prefill], plan.decode) for plan in model.plans]
    assert planned == [([first], []), ([], [first]), ([second], []), ([], [second]), ([], [])]


def test_one_that_comes_while_a_step_runs_is_in_the_next() -> None:
    model = AheadModel(make_scheduler())
    model.add([1, 2, 3], 9)
    model.cycle()
    model.scheduler.schedule_ahead()
    late = model.add([4, 5], 2)
    model.scheduler.on_step(model.compute())
    assert [chunk.id for chunk in model.scheduler.resume().prefill] == [late]


def test_nobody_is_preempted_for_memory_that_is_about_to_come_free() -> None:
    """Ahead, the block that another gives back when it ends is not there yet."""
    model = AheadModel(make_scheduler(blocks=4, block_tokens=2, max_seqs=2))
    model.add([1, 2, 3], 4)
    model.add([4, 5, 6], 2)
    model.run()
    check_answers(model)
    assert model.scheduler.stats().preemptions == 0


def test_a_plan_is_not_made_over_results_that_are_still_to_come() -> None:
    scheduler = make_scheduler()
    id = scheduler.add(Request([1, 2, 3], 4))
    scheduler.schedule()
    scheduler.schedule_ahead()
    scheduler.schedule_ahead()
    with pytest.raises(RuntimeError, match="still to come"):
        scheduler.schedule()
    with pytest.raises(ValueError, match=f"request {id} has neither"):
        scheduler.on_step([])


def test_who_lacks_memory_takes_it_from_the_tail_in_the_very_next_step() -> None:
    """Left out of a plan made ahead, the urgent one would wait while others go on."""
    model = AheadModel(make_scheduler(blocks=4, block_tokens=2, policy="priority", max_seqs=2))
    urgent = model.add([1, 2, 3], 5, priority=9)
    other = model.add([4, 5, 6], 3)
    model.run()
    check_answers(model)
    assert all(urgent in plan.decode for plan in model.plans[1:5])
    assert [id for plan in model.plans for id in plan.preempted] == [other]


def test_one_that_is_about_to_end_is_given_no_more_memory() -> None:
    model = AheadModel(make_scheduler(block_tokens=2))
    model.add([1, 2, 3], 2)
    model.cycle()
    free = model.scheduler.blocks.free_blocks
    model.scheduler.schedule_ahead()
    assert model.scheduler.blocks.free_blocks == free


def test_as_much_is_found_of_an_answer_as_without_overlap() -> None:
    """Its last token counted as not computed though it was, a block would be forgotten."""
    model = AheadModel(make_scheduler(cache=True))
    first = model.add(range(5), 4)
    model.run()
    second = model.add([*range(5), *model.generated[first]], 2)
    model.cycle()
    assert model.scheduler.cached_tokens(second) == 8
