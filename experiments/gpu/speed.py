"""How fast scheduler, kernels and sampler are together, and what memory would allow."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from engine.batch import Batch
from engine.batch_builder import BatchBuilder
from engine.blocks import FreeListBlocks
from engine.cuda.decoder import Decoder
from engine.cuda.runner import CudaRunner
from engine.cuda.sampling import CudaSampler
from engine.kv_pool import KVPool
from engine.logits import SampleRow
from engine.plan import ScheduleOutput
from engine.prefill import Chunked
from engine.request import Request, SamplingParams, StepOutput
from engine.scheduler import Scheduler, SchedulerConfig
from experiments.gpu.contracts import BLOCK, Place
from experiments.gpu.models import ModelShape
from experiments.gpu.report import Result

_GREEDY = SampleRow(SamplingParams(temperature=0.0), 0, [], [])


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of the engine.

    Attributes:
        concurrent: numbers of requests at once.
        prompt: tokens of a prompt.
        steps: decode steps that are timed.
        long_prompt, long_prompts: tokens and number of the prompts by which prefill is timed.
        budget: tokens a step.
        repeats: times that the same step is timed.
    """

    concurrent: Sequence[int] = (1, 8, 32, 128, 256)
    prompt: int = 128
    steps: int = 40
    long_prompt: int = 1024
    long_prompts: int = 8
    budget: int = 2048
    repeats: int = 20

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.prompt + self.steps + 16, self.long_prompt + 2)


Rate: TypeAlias = Callable[[], float]

TINY_LOAD = Load((1, 2), 3, 1, 5, 2, 16, 1)


class Loop:
    """The engine's step loop without text: schedule, compute, choose, take the results."""

    def __init__(
        self, runner: CudaRunner, sampler: CudaSampler, blocks: int, longest: int, load: Load
    ) -> None:
        most = max(*load.concurrent, load.long_prompts)
        config = SchedulerConfig(
            max_seqs=most,
            max_batch_tokens=max(load.budget, most),
            max_waiting=most,
            max_model_len=longest,
        )
        self.scheduler = Scheduler(
            config, FreeListBlocks(BLOCK, range(blocks)), Chunked(load.budget)
        )
        self._builder = BatchBuilder(self.scheduler, most, longest)
        self._runner = runner
        self._sampler = sampler

    def plan(self) -> tuple[ScheduleOutput, Batch]:
        """The next step, and its batch."""
        plan = self.scheduler.schedule()
        return plan, self._builder.prepare(plan)

    def finish(self, plan: ScheduleOutput, batch: Batch) -> None:
        """Compute a step and give the scheduler its tokens."""
        ids = [chunk.id for chunk in plan.prefill if chunk.last] + plan.decode
        tokens: Sequence[object] = []
        if ids:
            logits = self._runner.forward(batch)
            tokens = self._sampler.sample(logits, [_GREEDY] * len(ids))
        else:
            self._runner.hidden(batch)
        outputs = []
        for id, token in zip(ids, tokens, strict=True):
            if not isinstance(token, int):
                raise ValueError(f"no token of request {id}: {token}")
            outputs.append(StepOutput(id, token))
        self.scheduler.on_step(outputs)

    def step(self) -> ScheduleOutput:
        """One whole step."""
        plan, batch = self.plan()
        self.finish(plan, batch)
        return plan


def copy_rate(device: torch.device) -> float:
    """Bytes a second that a large copy on the device reads and writes."""
    size = 1 << 30 if device.type == "cuda" else 1 << 22
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = _timed(lambda: target.copy_(source), device, 10)
    return 2 * size / seconds


def _timed(work: Callable[[], object], device: torch.device, times: int) -> float:
    """Seconds of one of several runs of ``work``, one after the other."""
    work()
    _wait(device)
    begin = time.perf_counter()
    for _ in range(times):
        work()
    _wait(device)
    return (time.perf_counter() - begin) / times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class SpeedTest:
    """One model's speed.

    Args:
        place: where it is.
        shape: its sizes.
        decoder: the model.
        load: what is asked.
        rate: bytes a second that memory can give, as :func:`copy_rate` found.
    """

    def __init__(
        self, place: Place, shape: ModelShape, decoder: Decoder, load: Load, rate: float
    ) -> None:
        self._place = place
        self._shape = shape
        self._load = load
        self._rate = rate
        most = max(load.concurrent)
        self._longest = load.longest
        short = -(-(load.prompt + load.steps + 16) // BLOCK)
        long = -(-(load.long_prompt + 2) // BLOCK)
        self._blocks = max(most * short, load.long_prompts * long)
        self._kv = shape.kv(place.dtype)
        pool = KVPool(self._kv, self._blocks, BLOCK, place.device)
        begin = time.perf_counter()
        self._runner = CudaRunner(decoder, pool, most, self._longest)
        _wait(place.device)
        self.recording_s = time.perf_counter() - begin
        self._sampler = CudaSampler(shape.vocab, place.device)

    def _loop(self) -> Loop:
        return Loop(self._runner, self._sampler, self._blocks, self._longest, self._load)

    def _prompt(self, number: int, length: int) -> list[int]:
        return [(number * 7919 + i * 104_729 + 17) % self._shape.vocab for i in range(length)]

    def decode(self, concurrent: int) -> Result:
        """Tokens a second while so many requests decode, and the share of what memory allows."""
        load, loop = self._load, self._loop()
        for number in range(concurrent):
            loop.scheduler.add(Request(self._prompt(number, load.prompt), load.steps + 8))
        while len(loop.step().decode) < concurrent:
            pass
        loop.step()
        _wait(self._place.device)
        begin = time.perf_counter()
        for _ in range(load.steps):
            loop.step()
        seconds = (time.perf_counter() - begin) / load.steps
        # The same step again and again, without waiting for its tokens: what the GPU needs.
        _, batch = loop.plan()
        model = _timed(lambda: self._runner.forward(batch), self._place.device, load.repeats)
        keys = concurrent * (load.prompt + load.steps)
        read = self._shape.read_parameters() * self._place.dtype.itemsize
        read += keys * self._kv.bytes_per_token
        return {
            "tokens/s": concurrent / seconds,
            "step ms": 1e3 * seconds,
            "model ms": 1e3 * model,
            "share of bandwidth, step": read / seconds / self._rate,
            "share of bandwidth, model": read / model / self._rate,
        }

    def prefill(self) -> Result:
        """Prompt tokens a second, and the multiply-adds that the products make of it."""
        load = self._load
        seconds = 0.0
        for warm in (True, False):
            loop = self._loop()
            for number in range(load.long_prompts):
                # Prompts of another run would do as well: nothing is cached between them.
                loop.scheduler.add(Request(self._prompt(number + warm, load.long_prompt), 1))
            _wait(self._place.device)
            begin = time.perf_counter()
            while loop.scheduler.has_unfinished():
                loop.step()
            _wait(self._place.device)
            seconds = time.perf_counter() - begin
        tokens = load.long_prompt * load.long_prompts
        layers = self._shape.weights()[:4]
        flops = 2 * sum(n * k for n, k in layers) * self._shape.layers * tokens
        return {"tokens/s": tokens / seconds, "TFLOP/s of the products": flops / seconds / 1e12}


Loaded: TypeAlias = Callable[[], SpeedTest]
