"""Any order of calls against the naive scheduler: same plans, blocks, events and counts."""

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from engine.blocks import Allocation, Found, FreeListBlocks
from engine.invariants import check_invariants
from engine.prefill import Chunked, WholePrompt
from engine.prefix_cache import BlockManager
from engine.request import AdmitError, InvalidParam
from engine.scheduler import (
    Request,
    SchedPolicy,
    Scheduler,
    SchedulerConfig,
    StepOutput,
    Token,
)
from engine.swap import SwapSpace
from tests.engine.fake_model import check_limits
from tests.engine.naive_scheduler import NaiveScheduler

# A request that was never added, or ended long ago, may be named at any time.
any_id = st.integers(-1, 30)
tokens = st.integers(0, 9)
outcome = tokens.map(lambda token: (token, token > 6))


def mostly(usual: int, *others: int) -> st.SearchStrategy[int]:
    """Extreme limits are worth a try, but under the usual ones more can happen."""
    return st.sampled_from([usual] * 8 + list(others))


# Levels of admission preemption, how often one request makes way, how often one is passed.
options = st.tuples(
    mostly(1, 2, 4, 0, 0, 0, 0), st.integers(1, 3), st.sampled_from([0, 0, 1, 2, 9])
)
# Slots of host memory for the blocks of preempted requests.
host_memory = st.sampled_from([0, 0, 2, 5, 40])

# Requests that a small pool holds one by one, but not together.
crowd = st.lists(
    st.tuples(st.integers(1, 7), mostly(10, 12, 2), st.integers(0, 4)), min_size=3, max_size=6
)


class Unused(BlockManager):
    """A prefix cache in which nobody finds anything."""

    def allocate(
        self, id: int, tokens: Sequence[int], salt: bytes = b"", reuse: bool = True
    ) -> Allocation:
        return super().allocate(id, tokens, salt, reuse=False)

    def look_up(self, tokens: Sequence[int], salt: bytes = b"") -> Found:
        return Found()


class SchedulerAgainstNaive(RuleBasedStateMachine):
    """Drives both with the same calls, in any order a caller could choose."""

    cache = False

    @initialize(
        max_seqs=mostly(4, 6, 1),
        max_batch_tokens=mostly(16, 24, 8, 4, 1),
        max_waiting=mostly(24, 3, 0),
        policy=st.sampled_from([*SchedPolicy, SchedPolicy.PRIORITY]),
        aging=mostly(4, 2, 1, 0),
        max_model_len=mostly(40, 12, 2),
        block_tokens=st.integers(1, 4),
        room=mostly(20, 24, 30, 3),
        max_chunk=st.sampled_from([None, 1, 3, 50]),
        option=options,
        slots=host_memory,
        jobs=crowd,
    )
    def start(
        self,
        max_seqs: int,
        max_batch_tokens: int,
        max_waiting: int,
        policy: SchedPolicy,
        aging: int,
        max_model_len: int,
        block_tokens: int,
        room: int,
        max_chunk: int | None,
        option: tuple[int, int, int],
        slots: int,
        jobs: list[tuple[int, int, int]],
    ) -> None:
        total_blocks = room // block_tokens
        self.real = Scheduler(
            SchedulerConfig(
                max_seqs, max_batch_tokens, max_waiting, policy, aging, max_model_len, *option
            ),
            (Unused if self.cache else FreeListBlocks)(block_tokens, range(total_blocks)),
            WholePrompt() if max_chunk is None else Chunked(max_chunk),
            swap=SwapSpace(slots, block_tokens),
        )
        self.naive = NaiveScheduler(
            max_seqs,
            max_batch_tokens,
            max_waiting,
            policy is SchedPolicy.PRIORITY,
            aging,
            max_model_len,
            block_tokens,
            total_blocks,
            max_chunk,
            *option,
            host_slots=slots,
        )
        self.due: list[int] = []
        self.tide = 0
        # Any rule may be left out of a whole run, so that there is something to do is not one.
        self.add_several(jobs)

    @rule(
        length=st.integers(0, 14),
        max_tokens=st.integers(0, 12),
        priority=st.integers(-3, 10),
        arrival=st.none() | st.integers(0, 40),
        generated=st.lists(tokens, max_size=3) | st.just([]),
    )
    def add(
        self,
        length: int,
        max_tokens: int,
        priority: int,
        arrival: int | None,
        generated: list[int],
    ) -> None:
        prompt = list(range(length))
        expected = self.naive.add(prompt, max_tokens, priority, arrival, generated)
        got: int | str
        try:
            got = self.real.add(Request(prompt, max_tokens, priority, arrival, generated))
        except (AdmitError, InvalidParam) as refusal:
            got = type(refusal).__name__
        assert got == expected

    @rule(jobs=crowd)
    def add_several(self, jobs: list[tuple[int, int, int]]) -> None:
        for length, max_tokens, priority in jobs:
            self.add(length, max_tokens, priority, None, [])

    @rule(lengths=st.lists(st.integers(1, 14), min_size=1, max_size=3), count=st.integers(1, 4))
    def more_urgent_ones(self, lengths: list[int], count: int) -> None:
        """Some that most likely outrank all before them, so that others have to make way."""
        self.tide += 5
        for length in lengths:
            self.add(length, 6, self.tide, None, [])
        self.steps(count)

    @rule(data=st.data(), stranger=any_id)
    def abort(self, data: st.DataObject, stranger: int) -> None:
        """One in flight, one that waits or runs, or one that is long gone."""
        id = data.draw(st.sampled_from([*self.due, *self.naive.jobs, stranger]))
        self.real.abort(id)
        self.naive.abort(id)

    @rule()
    def schedule(self) -> None:
        plan = self.real.schedule()
        chunks = [(chunk.id, chunk.start, chunk.len, chunk.last) for chunk in plan.prefill]
        assert (chunks, plan.decode, plan.preempted) == self.naive.schedule()
        check_limits(self.real.config, plan)
        self.due = [chunk.id for chunk in plan.prefill if chunk.last] + plan.decode

    @rule(data=st.data(), stray=st.lists(any_id, max_size=2))
    def on_step(self, data: st.DataObject, stray: list[int]) -> None:
        self.report_any(data, stray)

    def report_any(self, data: st.DataObject, stray: list[int]) -> None:
        self.report({id: data.draw(outcome) for id in self.due}, stray)

    @rule(data=st.data())
    def on_step_with_rows_missing(self, data: st.DataObject) -> None:
        done = [id for id in self.due if data.draw(st.booleans())]
        self.report(dict.fromkeys(done, (1, False)), [])

    @rule(data=st.data())
    def interrupted_step(self, data: st.DataObject) -> None:
        """A step whose requests are in part aborted while it runs."""
        self.schedule()
        for id in list(self.due):
            if data.draw(st.integers(0, 3)) == 0:
                self.real.abort(id)
                self.naive.abort(id)
        self.report_any(data, [])

    @rule(count=st.integers(1, 8))
    def steps(self, count: int) -> None:
        """Several whole steps without a stop, so that pressure builds up."""
        for step in range(count):
            self.schedule()
            self.report(dict.fromkeys(self.due, (step, False)), [])

    def report(self, sampled: dict[int, tuple[int, bool]], stray: list[int]) -> None:
        outputs = [StepOutput(id, token, stop) for id, (token, stop) in sampled.items()]
        outputs += [StepOutput(id, 5) for id in stray if id not in self.due]
        events = [
            (event.id, event.token) if isinstance(event, Token) else (event.id, event.reason.value)
            for event in self.real.on_step(outputs)
        ]
        assert events == self.naive.on_step(sampled)
        self.due = []

    @invariant()
    def both_agree(self) -> None:
        real, naive = self.real, self.naive
        check_invariants(real)
        stats = real.stats()
        assert real.running() == naive.in_order(waiting=False)
        assert stats.running == len(naive.in_order(waiting=False))
        assert stats.waiting == len(naive.in_order(waiting=True))
        assert stats.waiting_blocks == naive.waiting_blocks()
        assert stats.free_blocks == real.blocks.free_blocks == len(naive.free())
        assert (stats.preemptions, stats.steps) == (naive.preemptions, naive.steps)
        assert stats.admission_preemptions == naive.admission_preemptions
        assert stats.restored_tokens == naive.restored
        assert real.swap is not None
        assert real.swap.free_slots == naive.free_slots()
        assert stats.gap_admissions == naive.gap_admissions
        assert stats.recomputed_tokens == naive.recomputed
        assert real.unfinished() == len(naive.jobs)
        assert real.has_unfinished() == bool(naive.jobs)
        for id, job in naive.jobs.items():
            assert list(real.tokens(id)) == job.prompt + job.generated
            assert real.prompt_len(id) == len(job.prompt)
            if job.blocks is not None:
                table = list(real.blocks.block_table(id))
                assert table == job.blocks or (self.cache and len(table) == len(job.blocks))

    def teardown(self) -> None:
        """Whatever happened before, all that is left ends and every block comes back."""
        if not hasattr(self, "real"):
            return
        for _ in range(2000):
            if not self.real.has_unfinished():
                break
            self.schedule()
            self.report(dict.fromkeys(self.due, (1, False)), [])
        assert not self.real.has_unfinished()
        assert self.real.blocks.free_blocks == self.real.blocks.total_blocks


SchedulerAgainstNaive.TestCase.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None
)
TestSchedulerAgainstNaive = SchedulerAgainstNaive.TestCase


class CachingSchedulerAgainstNaive(SchedulerAgainstNaive):
    """The same over a prefix cache that nobody may use: only which block it is may differ."""

    cache = True


CachingSchedulerAgainstNaive.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None
)
TestCachingSchedulerAgainstNaive = CachingSchedulerAgainstNaive.TestCase
