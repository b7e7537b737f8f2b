"""An engine over a tiny model, whose model fails on demand, and an inbox for its reports."""

import random
import threading
import time
from collections.abc import Callable
from typing import ClassVar

import pytest
from torch import Tensor

from engine.batch import Batch
from engine.blocks import FreeListBlocks
from engine.engine import Engine
from engine.guides import Guides
from engine.host_blocks import HostBlocks
from engine.prefill import Chunked
from engine.prefix_cache import BlockManager
from engine.request import SamplingParams
from engine.runner import ModelRunner
from engine.sampling import Sampler
from engine.scheduler import Scheduler, SchedulerConfig
from engine.step_times import StepTimes
from engine.submission import Delta, Detail, StepReport, Submission, TokenLogprobs
from engine.swap import SwapSpace
from engine.text import TokenBytes
from tests.engine.tiny import VOCAB, tiny_runner, word_tokenizer

TIMEOUT = 30.0
WAITING_LOOPS = pytest.mark.parametrize("each_loop", ["plain", "overlap"], indirect=True)
"""For tests of one step at a time: none is launched before the one before it is known."""

EOS = 2


class FaultyRunner(ModelRunner):
    """A real runner that fails on demand, as a device or a kernel may."""

    before: Callable[[Batch], None]

    def hidden(self, batch: Batch) -> Tensor:
        self.before(batch)
        return super().hidden(batch)


class EarlySampler(Sampler):
    """As a device's: the next step is launched before anybody here knows the tokens."""

    asynchronous = True


class Inbox:
    """Collects what the engine reports; waits for conditions."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self._grew = threading.Condition()

    def __call__(self, report: StepReport) -> None:
        with self._grew:
            self.deltas.extend(report.deltas)
            self._grew.notify_all()

    def of(self, key: str) -> list[Delta]:
        return [delta for delta in self.deltas if delta.key == key]

    def tokens(self, key: str) -> list[int]:
        return [token for delta in self.of(key) for token in delta.tokens]

    def text(self, key: str) -> str:
        return "".join(delta.text for delta in self.of(key))

    def details(self, key: str) -> list[Detail]:
        return [delta.detail for delta in self.of(key) if delta.detail is not None]

    def logprobs(self, key: str) -> list[TokenLogprobs]:
        return [told for detail in self.details(key) for told in detail.logprobs]

    def prompt_logprobs(self, key: str) -> list[TokenLogprobs | None]:
        return [told for detail in self.details(key) for told in detail.prompt_logprobs]

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._grew:
            assert self._grew.wait_for(condition, TIMEOUT), self.deltas

    def ended(self, key: str) -> bool:
        return any(d.finish is not None or d.error is not None for d in self.of(key))


class Bench:
    """An engine over a tiny model, its inbox and its scheduler.

    Attributes:
        overlap, sampler: which loop they all have; see the fixture ``each_loop``.
    """

    overlap: ClassVar[bool] = False
    sampler: ClassVar[type[Sampler]] = Sampler

    def __init__(
        self,
        num_blocks: int = 32,
        max_waiting: int = 16,
        max_seqs: int = 8,
        eos: int = EOS,
        monotonic: Callable[[], float] = time.monotonic,
        debug: bool = False,
        admission_preemption: int = 0,
        guides: Guides | None = None,
        clock: Callable[[], int] | None = None,
        chunk: int = 16,
        times: StepTimes | None = None,
        slots: int = 0,
        cache: bool = False,
    ) -> None:
        self.inbox = Inbox()
        self.blocks = (BlockManager if cache else FreeListBlocks)(4, range(num_blocks))
        self.runner = tiny_runner(num_blocks, 4, FaultyRunner)
        self.runner.before = lambda batch: None
        scheduler = Scheduler(
            SchedulerConfig(
                max_seqs=max_seqs,
                max_batch_tokens=64,
                max_waiting=max_waiting,
                max_model_len=120,
                admission_preemption=admission_preemption,
            ),
            self.blocks,
            Chunked(chunk),
            clock,
            SwapSpace(slots, 4) if slots else None,
        )
        self.engine = Engine(
            scheduler,
            self.runner,
            self.sampler(VOCAB),
            TokenBytes(word_tokenizer()),
            (eos,),
            self.inbox,
            random.Random(0),
            monotonic,
            debug,
            guides,
            times,
            HostBlocks(self.runner.pool, slots) if slots else None,
            self.overlap,
        )

    def submit(
        self, key: str, prompt: tuple[int, ...] = (5, 6, 7), priority: int = 0, **params: object
    ) -> None:
        given = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 6, **params}
        asked = SamplingParams(**given)  # type: ignore[arg-type]
        self.engine.submit(Submission(key, prompt, asked, priority))

    def run(self) -> None:
        while self.engine.keys():
            self.engine.step()
