"""Admission preemption under any load: bounded, never in vain, and nobody's answer changes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.prefill import Chunked, PrefillPolicy, WholePrompt
from engine.scheduler import SchedPolicy, ScheduleOutput
from tests.engine.fake_model import FakeModel, answer, make_scheduler
from tests.engine.naive_scheduler import NaiveScheduler

# Of each request: steps after the one before, tokens of prompt, tokens to make, priority.
Arrival = tuple[int, int, int, int]


def rising(jobs: list[Arrival]) -> list[Arrival]:
    """Most that come later are more urgent, so that there is something to preempt for."""
    return [
        (steps, length, most, urgency + 2 * i)
        for i, (steps, length, most, urgency) in enumerate(jobs)
    ]


arrivals = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 20), st.integers(2, 10), st.integers(0, 8)),
    min_size=4,
    max_size=14,
).map(rising)
chunk_sizes = st.sampled_from([None, 2, 5, 64])


def prefill(chunk: int | None) -> PrefillPolicy:
    return WholePrompt() if chunk is None else Chunked(chunk)


class Load:
    """Plays arrivals to their end, beside a naive scheduler if there is one."""

    def __init__(self, model: FakeModel, naive: NaiveScheduler | None = None) -> None:
        self.model = model
        self.naive = naive

    def play(self, jobs: list[Arrival]) -> None:
        for steps, length, most, priority in jobs:
            for _ in range(steps):
                self.step()
            self.model.add([length] * length, most, priority=priority)
            if self.naive is not None:
                self.naive.add([length] * length, most, priority, None, [])
        for _ in range(3000):
            if not self.model.scheduler.has_unfinished():
                return
            self.step()
        raise AssertionError(f"stuck: {self.model.scheduler.stats()}")

    def step(self) -> ScheduleOutput:
        plan = self.model.scheduler.schedule()
        outputs = self.model.forward(plan)
        if self.naive is not None:
            chunks = [(chunk.id, chunk.start, chunk.len, chunk.last) for chunk in plan.prefill]
            assert (chunks, plan.decode, plan.preempted) == self.naive.schedule()
            self.naive.on_step({output.id: (output.token, False) for output in outputs})
        self.model.finish(plan, outputs)
        return plan


class Watched(Load):
    """Notes who made way, and checks of each step that it was for somebody."""

    def __init__(self, model: FakeModel, naive: NaiveScheduler, jobs: list[Arrival]) -> None:
        super().__init__(model, naive)
        self.priorities = [priority for *_, priority in jobs]
        self.made_way: list[int] = []

    def step(self) -> ScheduleOutput:
        before = self.model.scheduler.stats().admission_preemptions
        plan = super().step()
        count = self.model.scheduler.stats().admission_preemptions - before
        if count:
            # Decodes preempt first, so the last ones made way for newcomers.
            victims = plan.preempted[-count:]
            self.made_way += victims
            started = [self.priorities[chunk.id] for chunk in plan.prefill if chunk.start == 0]
            levels = self.model.scheduler.config.admission_preemption
            for id in victims:
                assert max(started) - self.priorities[id] >= levels
        return plan


@settings(max_examples=150, deadline=None)
@given(
    jobs=arrivals,
    chunk=chunk_sizes,
    blocks=st.sampled_from([8, 8, 10, 16]),
    seats=st.sampled_from([4, 4, 8, 1]),
    budget=st.sampled_from([32, 8, 4]),
    aging=st.sampled_from([4, 100, 1]),
    levels=st.integers(1, 4),
    bound=st.integers(1, 3),
)
def test_any_load(
    jobs: list[Arrival],
    chunk: int | None,
    blocks: int,
    seats: int,
    budget: int,
    aging: int,
    levels: int,
    bound: int,
) -> None:
    """Fault: some load loses an answer, a block or its progress, or preempts in vain."""
    model = FakeModel(
        make_scheduler(
            blocks=blocks,
            prefill=prefill(chunk),
            policy="priority",
            max_seqs=seats,
            max_batch_tokens=budget,
            aging_steps=aging,
            admission_preemption=levels,
            max_admission_preemptions=bound,
        )
    )
    naive = NaiveScheduler(seats, budget, 64, True, aging, 256, 4, blocks, chunk, levels, bound)
    load = Watched(model, naive, jobs)
    load.play(jobs)
    for id, (prompt, most) in model.asked.items():
        assert model.generated[id] == answer(prompt, most)
        assert load.made_way.count(id) <= bound
    stats = model.scheduler.stats()
    assert (stats.free_blocks, stats.waiting, stats.waiting_blocks) == (blocks, 0, 0)
    assert stats.admission_preemptions == len(load.made_way) == naive.admission_preemptions


@settings(max_examples=60, deadline=None)
@given(jobs=arrivals, chunk=chunk_sizes, policy=st.sampled_from(list(SchedPolicy)))
def test_where_nobody_may_make_way_the_plans_are_those_without_the_option(
    jobs: list[Arrival], chunk: int | None, policy: SchedPolicy
) -> None:
    """Fault: the option costs those who gain nothing by it."""
    too_many = 100 if policy is SchedPolicy.PRIORITY else 1
    plans = []
    for levels in (0, too_many):
        model = FakeModel(
            make_scheduler(
                blocks=10,
                prefill=prefill(chunk),
                policy=policy,
                max_seqs=3,
                admission_preemption=levels,
            )
        )
        Load(model).play(jobs)
        plans.append(model.plans)
    assert plans[0] == plans[1]


def steps_until_low_ends(priority: int, aging: int, tokens: int, bound: int, limit: int) -> int:
    """Steps that a priority-0 request takes beside one urgent newcomer a step."""
    model = FakeModel(
        make_scheduler(
            policy="priority",
            max_seqs=1,
            aging_steps=aging,
            admission_preemption=1,
            max_admission_preemptions=bound,
        )
    )
    low = model.add([1], tokens)
    for step in range(limit):
        model.add([2], 1, priority=priority)
        model.step()
        if low in model.reasons:
            return step + 1
    raise AssertionError(f"starved: {model.scheduler.stats()}")


@settings(max_examples=40, deadline=None)
@given(
    priority=st.integers(1, 9),
    aging=st.integers(0, 6),
    tokens=st.integers(1, 8),
    bound=st.integers(1, 40),
)
def test_aging_bounds_the_wait(priority: int, aging: int, tokens: int, bound: int) -> None:
    """Fault: urgent newcomers throw out an old request for longer than they may pass it."""
    most = priority * aging + tokens
    assert steps_until_low_ends(priority, aging, tokens, bound, limit=most + 1) <= most
