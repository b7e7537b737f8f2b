"""A model without weights, whose answers are known, and a driver for the scheduler.

It keeps a real pool: the "K and V" of a position is the token itself, written into the
block and slot that the block table names. The next token is made from what is *read
back* through the table, so a lost block, a block in two tables, a position that was
never computed, or a prompt computed without what was generated gives a wrong answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.blocks import FreeListBlocks
from engine.invariants import check_invariants
from engine.prefill import PrefillPolicy
from engine.prefix_cache import BlockManager
from engine.scheduler import (
    Finished,
    FinishReason,
    Request,
    ScheduleOutput,
    Scheduler,
    SchedulerConfig,
    StepOutput,
    Token,
)
from engine.swap import Copy, SwapSpace

VOCABULARY = 997
LOST = -1

NextToken = Callable[[Sequence[int], Sequence[int]], int]


def greedy(prompt: Sequence[int], generated: Sequence[int]) -> int:
    """Return a token that depends on every token so far and on their order."""
    state = 7
    for token in (*prompt, *generated):
        state = (state * 1_000_003 + token + 1) % (2**31 - 1)
    return state % VOCABULARY


def answer(prompt: Sequence[int], count: int, next_token: NextToken = greedy) -> list[int]:
    """Return what the model says to ``prompt``, worked out without any scheduling."""
    generated: list[int] = []
    for _ in range(count):
        generated.append(next_token(prompt, generated))
    return generated


def make_scheduler(
    blocks: int = 64,
    block_tokens: int = 4,
    prefill: PrefillPolicy | None = None,
    clock: Callable[[], int] | None = None,
    cache: bool = False,
    slots: int | None = None,
    **config: object,
) -> Scheduler:
    """Return a scheduler over blocks 0..blocks-1 with small, roomy limits.

    With ``slots``, always what is preempted is swapped, as far as they suffice.
    """
    limits: dict[str, object] = {
        "max_seqs": 8,
        "max_batch_tokens": 64,
        "max_waiting": 64,
        "policy": "fcfs",
        "aging_steps": 4,
        "max_model_len": 256,
    }
    limits.update(config)
    pool = (BlockManager if cache else FreeListBlocks)(block_tokens, range(blocks))
    swap = None if slots is None else SwapSpace(slots, block_tokens)
    limit = SchedulerConfig(**limits)  # type: ignore[arg-type]
    return Scheduler(limit, pool, prefill, clock, swap)


@dataclass
class FakeModel:
    """Runs a scheduler's plans and collects what comes out of each request."""

    scheduler: Scheduler
    next_token: NextToken = greedy
    stop_token: int | None = None
    plans: list[ScheduleOutput] = field(default_factory=list)
    asked: dict[int, tuple[list[int], int]] = field(default_factory=dict)
    generated: dict[int, list[int]] = field(default_factory=dict)
    reasons: dict[int, FinishReason] = field(default_factory=dict)
    memory: dict[tuple[int, int], int] = field(default_factory=dict)
    host: dict[tuple[int, int], int] = field(default_factory=dict)
    copied: list[Copy] = field(default_factory=list)

    def add(self, prompt: Sequence[int], max_tokens: int = 4, **fields: object) -> int:
        """Queue a request and return its id."""
        id = self.scheduler.add(Request(list(prompt), max_tokens, **fields))  # type: ignore[arg-type]
        self.asked[id] = (list(prompt), max_tokens)
        self.generated[id] = []
        return id

    def forward(self, plan: ScheduleOutput) -> list[StepOutput]:
        """Compute the rows of ``plan``: write K and V, then sample from what is there."""
        self._copy()
        tables = {}
        for chunk in plan.prefill:
            tables[chunk.id] = self._write(chunk.id, chunk.start, chunk.start + chunk.len)
        for id in plan.decode:
            total = len(self.scheduler.tokens(id))
            tables[id] = self._write(id, total - 1, total)
        sampled = [chunk.id for chunk in plan.prefill if chunk.last] + plan.decode
        return [self._sample(id, tables[id]) for id in sampled]

    def step(self) -> list[Token | Finished]:
        """Do one step, check every invariant, and return its events."""
        plan = self.scheduler.schedule()
        return self.finish(plan, self.forward(plan))

    def finish(self, plan: ScheduleOutput, outputs: Sequence[StepOutput]) -> list[Token | Finished]:
        """Hand the results of ``plan`` in and note what they mean."""
        self.plans.append(plan)
        check_limits(self.scheduler.config, plan, isinstance(self.scheduler.blocks, BlockManager))
        events = self.scheduler.on_step(outputs)
        for event in events:
            if isinstance(event, Token):
                self.generated[event.id].append(event.token)
            else:
                self.reasons[event.id] = event.reason
        check_invariants(self.scheduler)
        return events

    def run(self, steps: int = 2000) -> None:
        """Step until nothing is left to do; a scheduler that gets stuck fails here."""
        for _ in range(steps):
            if not self.scheduler.has_unfinished():
                return
            self.step()
        assert not self.scheduler.has_unfinished(), f"stuck: {self.scheduler.stats()}"

    def run_until_preempted(self, count: int, steps: int = 200) -> None:
        """Step until ``count`` requests were preempted."""
        for _ in range(steps):
            if self.scheduler.stats().preemptions >= count:
                return
            self.step()
        raise AssertionError(f"{self.scheduler.stats()}")

    def _copy(self) -> None:
        """Make the copies that are due; what nobody holds then is nobody's any more."""
        blocks = self.scheduler.blocks
        self.copied = self.scheduler.take_copies()
        for copy in self.copied:
            for block, slot in zip(copy.blocks, copy.slots, strict=True):
                for offset in range(blocks.block_tokens):
                    memory, host = (block, offset), (slot, offset)
                    if copy.out:
                        self.host[host] = self.memory.get(memory, LOST)
                    else:
                        self.memory[memory] = self.host[host]
        if self.scheduler.swap is not None and isinstance(blocks, FreeListBlocks):
            tables = [blocks.block_table(id) for id in self.scheduler.running()]
            held = {block for table in tables for block in table}
            self.memory = {at: value for at, value in self.memory.items() if at[0] in held}

    def _write(self, id: int, start: int, end: int) -> Sequence[int]:
        size = self.scheduler.blocks.block_tokens
        table, tokens = self.scheduler.blocks.block_table(id), self.scheduler.tokens(id)
        for position in range(start, end):
            self.memory[table[position // size], position % size] = tokens[position]
        return table

    def _sample(self, id: int, table: Sequence[int]) -> StepOutput:
        size = self.scheduler.blocks.block_tokens
        total = len(self.scheduler.tokens(id))
        seen = [self.memory[table[at // size], at % size] for at in range(total)]
        cut = self.scheduler.prompt_len(id)
        token = self.next_token(seen[:cut], seen[cut:])
        return StepOutput(id, token, stop=token == self.stop_token)


def check_limits(config: SchedulerConfig, plan: ScheduleOutput, sharing: bool = False) -> None:
    """Check that a step keeps to its budget of tokens and of sequences.

    Where blocks are shared, one that was preempted may find so many that it starts again.
    """
    rows = [*(chunk.id for chunk in plan.prefill), *plan.decode]
    assert len(rows) == len(set(rows)) <= config.max_seqs
    assert sharing or not set(rows) & set(plan.preempted)
    cost = sum(chunk.len for chunk in plan.prefill) + len(plan.decode)
    assert cost <= config.max_batch_tokens or len(rows) == 1
