"""What the scheduler's books cost a step, without a model."""

import statistics
import time
from collections.abc import Iterator, Sequence

from engine.blocks import FreeListBlocks
from engine.prefill import Chunked
from engine.scheduler import Request, Scheduler, SchedulerConfig, StepOutput
from experiments.bench.table import Row

PROMPT, STEPS, WARM_UP, BLOCK = 128, 300, 20, 16


def measure(running: Sequence[int]) -> Iterator[Row]:
    """Yield µs of schedule + on_step with so many running decodes."""
    for count in running:
        note = f"schedule + on_step, median of {STEPS} steps"
        yield Row(f"scheduler, {count} running", _step_us(count), "µs a step", note)


def _step_us(count: int) -> float:
    config = SchedulerConfig(
        max_seqs=count, max_batch_tokens=8192, max_waiting=count, max_model_len=8192
    )
    blocks = FreeListBlocks(BLOCK, range(count * (PROMPT + STEPS + 100) // BLOCK))
    scheduler = Scheduler(config, blocks, Chunked(8192))
    for i in range(count):
        scheduler.add(Request([1] * PROMPT, STEPS + 90, priority=i % 5))
    took: list[float] = []
    while len(took) < STEPS + WARM_UP:
        begin = time.perf_counter()
        plan = scheduler.schedule()
        planned = time.perf_counter() - begin
        # Made by the sampler in a real step, so not counted here.
        outputs = [StepOutput(chunk.id, 1) for chunk in plan.prefill if chunk.last]
        outputs += [StepOutput(id, 1) for id in plan.decode]
        begin = time.perf_counter()
        scheduler.on_step(outputs)
        taken = time.perf_counter() - begin
        if len(plan.decode) == count:
            took.append(planned + taken)
    return statistics.median(took[WARM_UP:]) * 1e6
