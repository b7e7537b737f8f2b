"""What the books cost a step, without a model: the scheduler's, and all of the engine's."""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from tokenizers import Tokenizer, decoders, models
from torch import Tensor

from engine.batch import Batch
from engine.blocks import FreeListBlocks
from engine.engine import Engine
from engine.kv_pool import KVPool, KVShape
from engine.logits import SampleRow
from engine.prefill import Chunked
from engine.request import SamplingParams
from engine.sampling import Sampler, SamplingError
from engine.scheduler import Request, Scheduler, SchedulerConfig, StepOutput
from engine.submission import Submission
from engine.text import Detokenizer, TokenBytes
from experiments.bench.table import Row

PROMPT, STEPS, WARM_UP, BLOCK, VOCAB = 128, 300, 20, 16, 64
LIMIT = PROMPT + STEPS + 100


def measure(running: Sequence[int]) -> Iterator[Row]:
    """Yield µs of a step with so many running decodes."""
    for count in running:
        note = f"schedule + on_step, CPU time, median of {STEPS} steps"
        yield Row(f"scheduler, {count} running", scheduler_us(count), "µs a step", note)
        note = "all of a step but model, sampler and text"
        text = _text_us(count)
        yield Row(f"engine, {count} running", _engine_us(count) - text, "µs a step", note)
        yield Row(f"text, {count} running", text, "µs a step", "detokenising, no stop strings")


def _scheduler(count: int) -> Scheduler:
    config = SchedulerConfig(
        max_seqs=count, max_batch_tokens=8192, max_waiting=count, max_model_len=8192
    )
    return Scheduler(config, FreeListBlocks(BLOCK, range(count * LIMIT // BLOCK)), Chunked(8192))


def scheduler_us(count: int) -> float:
    """µs of CPU that ``schedule`` and ``on_step`` take together, a median of steps."""
    scheduler = _scheduler(count)
    for i in range(count):
        scheduler.add(Request([1] * PROMPT, STEPS + 90, priority=i % 5))
    took: list[float] = []
    while len(took) < STEPS + WARM_UP:
        begin = time.thread_time()
        plan = scheduler.schedule()
        planned = time.thread_time() - begin
        # Made by the sampler in a real step, so not counted here.
        outputs = [StepOutput(chunk.id, 1) for chunk in plan.prefill if chunk.last]
        outputs += [StepOutput(id, 1) for id in plan.decode]
        begin = time.thread_time()
        scheduler.on_step(outputs)
        taken = time.thread_time() - begin
        if len(plan.decode) == count:
            took.append(planned + taken)
    return statistics.median(took[WARM_UP:]) * 1e6


class _Instant:
    """A model that is done at once."""

    def __init__(self) -> None:
        self.pool = KVPool(KVShape(1, 1, 1, torch.float32), 1, BLOCK, torch.device("cpu"))
        self.nothing = torch.empty(0)

    def forward(self, batch: Batch) -> Tensor:
        return self.logits(self.hidden(batch), batch.wanted)

    def hidden(self, batch: Batch) -> Tensor:
        return self.nothing

    def logits(self, hidden: Tensor, rows: object) -> Tensor:
        return hidden


class _Constant(Sampler):
    """A sampler that always says the same."""

    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[int | SamplingError]:
        return [7] * len(rows)


def _engine_us(count: int) -> float:
    engine = Engine(
        _scheduler(count),
        _Instant(),
        _Constant(VOCAB),
        TokenBytes(_tokenizer()),
        (2,),
        lambda report: None,
        random.Random(0),
    )
    params = SamplingParams(max_tokens=STEPS + 90, ignore_eos=True)
    for i in range(count):
        engine.submit(Submission(str(i), (5,) * PROMPT, params, priority=i % 5))
    return _median_us(engine.step)


def _text_us(count: int) -> float:
    tokens = TokenBytes(_tokenizer())
    texts = [Detokenizer(tokens) for _ in range(count)]

    def step() -> None:
        for text in texts:
            text.feed(7)

    return _median_us(step)


def _median_us(step: Callable[[], object]) -> float:
    took: list[float] = []
    for _ in range(STEPS + WARM_UP):
        begin = time.perf_counter()
        step()
        took.append(time.perf_counter() - begin)
    return statistics.median(took[WARM_UP:]) * 1e6


def _tokenizer() -> Tokenizer:
    """Of numbered words; no model needs to be there."""
    words = {f"▁w{i}": i for i in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="▁w0"))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer
