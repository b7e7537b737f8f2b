"""engine.batch_builder: what is kept between steps is what would be made anew."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.plan import Segment
from engine.batch import Batch, Scored, batch_of
from engine.batch_builder import BatchBuilder
from engine.prefill import Chunked
from engine.scheduler import Chunk, Request, ScheduleOutput, Scheduler, StepOutput
from tests.engine.fake_model import make_scheduler


def made_anew(plan: ScheduleOutput, scheduler: Scheduler, tops: dict[int, int]) -> Batch:
    """The batch of a plan, as plainly as it can be written."""
    parts = [(chunk.id, chunk.start, chunk.len, chunk.last) for chunk in plan.prefill]
    parts += [(id, len(scheduler.tokens(id)) - 1, 1, True) for id in plan.decode]
    rows: list[int] = []
    segments, wanted, scored = [], [], []
    for number, (id, start, length, last) in enumerate(parts):
        tokens, prompt_len = list(scheduler.tokens(id)), scheduler.prompt_len(id)
        if id in tops and number < len(plan.prefill):
            targets = tuple(tokens[:prompt_len][start + 1 : start + length + 1])
            scored.append(Scored(number, len(rows), targets, tops[id]))
        segments.append(Segment(list(scheduler.blocks.block_table(id)), start, length))
        rows += tokens[start : start + length]
        if last:
            wanted.append(len(rows) - 1)
    return batch_of(rows, segments, wanted, scored)


def check_equal(batch: Batch, expected: Batch) -> None:
    for name in ("tokens", "starts", "lengths", "wanted"):
        got, want = getattr(batch, name), getattr(expected, name)
        assert (got.dtype, got.tolist()) == (want.dtype, want.tolist()), name
    assert [list(table) for table in batch.tables] == [list(table) for table in expected.tables]
    assert list(batch.scored) == list(expected.scored)
    seats = batch.seats.tolist()
    assert len(set(seats)) == len(seats) == len(batch.starts)
    for seat, table in zip(seats, expected.tables, strict=True):
        assert batch.block_tables[seat, : len(table)].tolist() == list(table)


action = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 11), st.integers(0, 9)),
    st.tuples(st.just("abort"), st.integers(0, 12), st.just(0)),
    st.tuples(st.just("step"), st.integers(1, 4), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(actions=st.lists(action, max_size=30), stop=st.integers(0, 9), level=st.integers(0, 2))
def test_any_batch_is_as_if_nothing_had_been_kept(
    actions: list[tuple[str, int, int]], stop: int, level: int
) -> None:
    """A stale table after a preemption reads what another request has written since."""
    scheduler = make_scheduler(
        blocks=10,
        block_tokens=2,
        prefill=Chunked(4),
        max_seqs=4,
        max_batch_tokens=7,
        policy="priority",
        max_model_len=20,
        admission_preemption=level,
    )
    builder = BatchBuilder(scheduler, 4, 20)
    for what, number, priority in [*actions, ("step", 60, 0)]:
        if what == "add":
            scheduler.add(Request(list(range(number)), 8, priority))
        elif what == "abort":
            scheduler.abort(number)
        else:
            for step in range(number):
                plan = scheduler.schedule()
                check_equal(builder.prepare(plan, {1: 2}), made_anew(plan, scheduler, {1: 2}))
                ids = [chunk.id for chunk in plan.prefill if chunk.last] + plan.decode
                token = (step * 7 + number) % 10
                scheduler.on_step([StepOutput(id, token, stop=token == stop) for id in ids])


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(2, 9)), min_size=1, max_size=14),
    drops=st.lists(st.integers(0, 13), max_size=20),
)
def test_a_batch_made_while_the_one_before_is_computed_leaves_that_alone(
    lengths: list[tuple[int, int]], drops: list[int]
) -> None:
    """Its rows lie where they did, and unknown tokens are the step's before, one further on."""
    scheduler = make_scheduler(
        blocks=40, block_tokens=2, prefill=Chunked(4), max_seqs=4, max_batch_tokens=9
    )
    for length, count in lengths:
        scheduler.add(Request(list(range(length)), count))
    builder = BatchBuilder(scheduler, 4, 20)
    plan = scheduler.schedule()
    batch = builder.prepare(plan)
    leaving = iter(drops)
    while scheduler.has_unfinished():
        before = [list(table) for table in batch.tables]
        scheduler.schedule_ahead()
        if (gone := next(leaving, None)) is not None:
            scheduler.abort(gone)
        ending = [chunk.id for chunk in plan.prefill if chunk.last] + plan.decode
        ahead = scheduler.launch_ahead()
        early = None
        if ahead is not None and (ahead.prefill or ahead.decode):
            early = builder.prepare(ahead, None, ending)
        for seat, table in zip(batch.seats, before, strict=True):
            assert batch.block_tables[seat, : len(table)].tolist() == table
        scheduler.on_step([StepOutput(id, id % 7) for id in ending])
        if early is None or ahead is None:
            plan = scheduler.resume()
            batch = builder.prepare(plan) if plan.prefill or plan.decode else batch
            continue
        plan, batch = ahead, early
        assert (batch.sources is not None) == bool(ending)
        for id in [id for id in plan.decode if id in scheduler]:
            row = len(batch.tokens) - len(plan.decode) + plan.decode.index(id)
            source = -1 if batch.sources is None else int(batch.sources[row])
            token = ending[source] % 7 if source >= 0 else int(batch.tokens[row])
            assert token == scheduler.tokens(id)[-1]
            segment = len(plan.prefill) + plan.decode.index(id)
            assert batch.starts[segment] == len(scheduler.tokens(id)) - 1


def test_one_that_was_preempted_and_is_back_in_the_same_plan_has_other_blocks() -> None:
    """Over a prefix cache it may need fewer new blocks than it gave back."""
    scheduler = make_scheduler(blocks=6, block_tokens=2)
    id = scheduler.add(Request([1, 2, 3], 4))
    builder = BatchBuilder(scheduler, 4, 20)
    builder.prepare(scheduler.schedule())
    blocks = scheduler.blocks
    blocks.release(id, [])
    blocks.allocate(id + 1, [7])
    blocks.allocate(id, [1, 2, 3])
    batch = builder.prepare(ScheduleOutput([Chunk(id, 0, 3, last=True)], [], preempted=[id]))
    assert batch.block_tables[batch.seats[0], :2].tolist() == [1, 2]


def test_rows_of_a_chunk_have_its_positions() -> None:
    parts = [Segment((3, 1), 2, 3), Segment((4,), 0, 1), Segment((5, 6), 4, 2)]
    batch = batch_of(range(6), parts, [2, 3, 5])
    assert batch.positions().tolist() == [2, 3, 4, 0, 4, 5]
    assert batch.positions().dtype == np.int32
    assert [*batch.segments] == parts


def test_a_part_of_a_batch_is_a_batch_of_its_own() -> None:
    parts = [Segment((3, 1), 2, 3), Segment((4,), 0, 1)]
    part = batch_of([10, 11, 12, 13], parts, [2, 3]).part(1, [0], [])
    check_equal(part, batch_of([13], parts[1:], [0]))
