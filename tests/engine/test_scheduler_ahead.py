"""Plans made ahead of the results before them: other plans, the same answers."""

from collections.abc import Collection, Sequence
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
class Part:
    """What one row, or the rows of one chunk, compute: positions ``start`` to ``end`` of a request.

    ``cut`` is the length of its prompt if they give it a token. ``late``: its last token is
    what the step before gives it.
    """

    id: int
    table: Sequence[int]
    start: int
    end: int
    tokens: list[int]
    cut: int | None
    late: bool


@dataclass
class Flight:
    """A step as it was taken down when it was launched."""

    parts: list[Part]
    copies: list[Copy]
    misled: bool = False

    def ending(self) -> set[int]:
        return {part.id for part in self.parts if part.cut is not None}


@dataclass
class AheadModel(FakeModel):
    """Drives a scheduler as the engine's overlapping loops do.

    What a step computes is taken down when it is launched, and is computed at last when the
    next plan has been made and requests have been aborted; if ``early``, when the next step
    has been launched, too.
    """

    early: bool = False
    aboard: Flight | None = None
    next: Flight | None = None
    broken: set[int] = field(default_factory=set)
    launched_ahead: int = 0

    def take_off(self, plan: ScheduleOutput, awaited: Collection[int] = ()) -> Flight | None:
        """Take down tables, positions and tokens; nothing may be missing or unknown."""
        scheduler = self.scheduler
        self.plans.append(plan)
        caching = isinstance(scheduler.blocks, BlockManager)
        check_limits(scheduler.config, plan, caching)
        rows = [(chunk.id, chunk.start, chunk.len, chunk.last, False) for chunk in plan.prefill]
        for id in plan.decode:
            late = id in awaited
            rows.append((id, len(scheduler.tokens(id)) - 1 + late, 1, True, late))
        if not rows:
            return None
        parts = [
            Part(
                id,
                scheduler.blocks.block_table(id),
                start,
                start + length,
                list(scheduler.tokens(id)),
                scheduler.prompt_len(id) if last else None,
                late,
            )
            for id, start, length, last, late in rows
        ]
        return Flight(parts, scheduler.take_copies())

    def compute(self) -> list[StepOutput]:
        """Write K and V of what is aboard, and sample; nothing is there of a broken request."""
        assert self.aboard is not None
        size = self.scheduler.blocks.block_tokens
        outputs = []
        for copy in self.aboard.copies:
            for block, slot in zip(copy.blocks, copy.slots, strict=True):
                for offset in range(size):
                    if copy.out:
                        self.host[slot, offset] = self.memory.get((block, offset), -9)
                    else:
                        self.memory[block, offset] = self.host[slot, offset]
        for part in self.aboard.parts:
            if self.aboard.misled and part.late:
                part.tokens[-1] = -8
            for position in range(part.start, part.end):
                value = -7 if part.id in self.broken else part.tokens[position]
                self.memory[part.table[position // size], position % size] = value
            if part.cut is not None and part.id not in self.broken:
                table = part.table
                seen = [self.memory[table[at // size], at % size] for at in range(part.end)]
                token = self.next_token(seen[: part.cut], seen[part.cut :])
                if not (self.aboard.misled and part.late):
                    outputs.append(StepOutput(part.id, token, stop=token == self.stop_token))
        tokens = {output.id: output.token for output in outputs}
        for part in self.next.parts if self.next is not None else ():
            if part.late:
                part.tokens.append(tokens.get(part.id, 0))
        return outputs

    def drop(self, id: int) -> None:
        """Abort a request, of which nothing may be heard any more."""
        self.scheduler.abort(id)
        self.asked.pop(id, None)

    def cycle(
        self,
        aborts: Sequence[tuple[int, int]] = (),
        broken: int | None = None,
        misled: bool = False,
    ) -> None:
        """From one launch to the next.

        Args:
            aborts: ids, and before what they come.
            broken: an id of which nothing works.
            misled: if the next step is launched ahead, it goes on from wrong tokens.
        """

        def at(moment: int) -> None:
            for id, when in aborts:
                if when == moment:
                    self.drop(id)

        scheduler = self.scheduler
        if self.aboard is None:
            self.aboard = self.take_off(scheduler.schedule())
            if self.aboard is None:
                return
        at(0)
        ahead = not self.aboard.misled
        if ahead:
            scheduler.schedule_ahead()
            plan = scheduler.launch_ahead() if self.early else None
            if plan is not None:
                self.next = self.take_off(plan, self.aboard.ending())
        if self.next is not None:
            self.launched_ahead += 1
            self.next.misled = misled
        check_books(scheduler)
        at(1)
        if broken is not None and any(part.id == broken for part in self.aboard.parts):
            self.broken.add(broken)
            self.drop(broken)
        outputs = self.compute()
        for event in scheduler.on_step(outputs):
            assert event.id in self.asked, "heard of one that is gone"
            if hasattr(event, "token"):
                self.generated[event.id].append(event.token)
            else:
                self.reasons[event.id] = event.reason
        check_invariants(scheduler)
        at(2)
        self.aboard, self.next = self.next, None
        if self.aboard is None:
            self.aboard = self.take_off(scheduler.resume() if ahead else scheduler.schedule())
        check_invariants(scheduler)

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
cycle = st.tuples(
    st.lists(request, max_size=3), moments, st.none() | st.integers(0, 20), st.booleans()
)


@settings(max_examples=150, deadline=None)
@given(
    cycles=st.lists(cycle, min_size=1, max_size=25),
    blocks=st.sampled_from([8, 10, 14, 40]),
    chunk=st.sampled_from([None, 2, 5]),
    limits=st.tuples(st.sampled_from([4, 6, 1]), st.sampled_from([16, 7, 3])),
    options=st.tuples(st.sampled_from([0, 2]), st.sampled_from([0, 3])),
    cache=st.booleans(),
    slots=st.sampled_from([None, 2, 9]),
    early=st.booleans(),
)
def test_any_load_gets_the_answers_of_each_alone(
    cycles: list[tuple[list[tuple[int, int, int, bool]], list[tuple[int, int]], int | None, bool]],
    blocks: int,
    chunk: int | None,
    limits: tuple[int, int],
    options: tuple[int, int],
    cache: bool,
    slots: int | None,
    early: bool,
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
    model = AheadModel(scheduler, few_words, stop_token=6, early=early)
    for requests, aborts, broken, misled in cycles:
        for length, count, priority, common in requests:
            prompt = [1 if common else (7 * at + length) % 5 for at in range(length)]
            model.add(prompt, count, priority=priority)
        model.cycle(aborts, broken, misled)
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


@pytest.mark.parametrize("early", [False, True])
def test_who_lacks_memory_takes_it_from_the_tail_in_the_very_next_step(early: bool) -> None:
    """Left out of a plan made ahead, the urgent one would wait while others go on."""
    scheduler = make_scheduler(blocks=4, block_tokens=2, policy="priority", max_seqs=2)
    model = AheadModel(scheduler, early=early)
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


def test_the_next_step_is_launched_while_the_tokens_are_unknown_and_ends_cost_one_row() -> None:
    """Fault: the loop waits for each token, or a request that has ended goes on."""
    model = AheadModel(make_scheduler(), few_words, stop_token=6, early=True)
    ids = [model.add([i, 2, 3], 9) for i in range(5)]
    model.run()
    check_answers(model)
    rows = [id for plan in model.plans for id in [*(c.id for c in plan.prefill), *plan.decode]]
    for id in ids:
        early = model.reasons[id] is FinishReason.STOP and len(model.generated[id]) < 9
        assert rows.count(id) == len(model.generated[id]) + early
    assert FinishReason.STOP in model.reasons.values()
    steps = [plan for plan in model.plans if plan.prefill or plan.decode]
    assert model.launched_ahead == len(steps) - 1


@pytest.mark.parametrize("option", ["admission_preemption", "max_passes"])
def test_a_step_waits_for_tokens_where_one_that_waits_may_start_by_other_rules(option: str) -> None:
    """Those need a plan that is made when it is known who has ended."""
    options = {"max_seqs": 1, "policy": "priority", option: 1}
    model = AheadModel(make_scheduler(**options), early=True)  # type: ignore[arg-type]
    model.add([1, 2, 3], 9)
    model.cycle()
    model.cycle()
    assert model.launched_ahead == 2
    model.add([4, 5], 2, priority=9)
    model.cycle()
    assert model.launched_ahead == 2
