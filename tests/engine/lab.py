"""Lab: drives a real Scheduler and a real Runner, and keeps every row of logits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.batch_builder import BatchBuilder
from engine.blocks import FreeListBlocks
from engine.host_blocks import HostBlocks
from engine.invariants import check_invariants
from engine.logits import SampleRow
from engine.prefill import PrefillPolicy, WholePrompt
from engine.prefix_cache import BlockManager
from engine.request import SamplingParams
from engine.runner import Runner
from engine.sampling import Sampler
from engine.scheduler import Request, Scheduler, SchedulerConfig, StepOutput, Token
from engine.swap import SwapSpace

GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Job:
    """One request: what is asked, how its tokens are drawn, and before which step it comes."""

    prompt: tuple[int, ...]
    max_tokens: int
    params: SamplingParams = GREEDY
    seed: int = 0
    priority: int = 0
    step: int = 0


@dataclass(slots=True)
class Answer:
    """Its tokens, and the logits that each was drawn from."""

    tokens: list[int]
    logits: list[Tensor]


@dataclass(slots=True)
class Run:
    """All answers, how often somebody was preempted on the way, and what a cache spared."""

    answers: list[Answer]
    preemptions: int
    admission_preemptions: int
    found_tokens: int
    restored_tokens: int


def run(
    runner: Runner,
    jobs: Sequence[Job],
    num_blocks: int | None = None,
    prefill: PrefillPolicy | None = None,
    max_batch_tokens: int = 512,
    max_seqs: int = 64,
    admission_preemption: int = 0,
    cache: bool = False,
    swap_slots: int = 0,
) -> Run:
    """Run the jobs over the first ``num_blocks`` blocks of the runner's pool.

    With ``swap_slots``, the blocks of who is preempted go to host memory.
    """
    pool = runner.pool
    host = HostBlocks(pool, swap_slots) if swap_slots else None
    scheduler = Scheduler(
        SchedulerConfig(
            max_seqs=max_seqs,
            max_batch_tokens=max_batch_tokens,
            max_waiting=64,
            max_model_len=2048,
            admission_preemption=admission_preemption,
        ),
        (BlockManager if cache else FreeListBlocks)(
            pool.block_tokens, range(num_blocks or pool.num_blocks)
        ),
        prefill or WholePrompt(),
        swap=SwapSpace(swap_slots, pool.block_tokens),
    )
    builder = BatchBuilder(scheduler, max_seqs, 2048)
    vocab = None
    todo = sorted(enumerate(jobs), key=lambda numbered: numbered[1].step)
    job_of: dict[int, Job] = {}
    answers = [Answer([], []) for _ in jobs]
    answer_of: dict[int, Answer] = {}
    while scheduler.has_unfinished() or todo:
        while todo and todo[0][1].step <= scheduler.stats().steps:
            at, job = todo.pop(0)
            id = scheduler.add(Request(list(job.prompt), job.max_tokens, job.priority))
            job_of[id], answer_of[id] = job, answers[at]
        plan = scheduler.schedule()
        check_invariants(scheduler)
        if host is not None:
            host.make(scheduler.take_copies())
        logits = runner.forward(builder.prepare(plan))
        rows = [chunk.id for chunk in plan.prefill if chunk.last] + list(plan.decode)
        vocab = vocab or Sampler(logits.shape[1])
        samples = [
            SampleRow(job_of[id].params, job_of[id].seed, job_of[id].prompt, answer_of[id].tokens)
            for id in rows
        ]
        tokens = [int(token) for token in vocab.sample(logits, samples)]  # type: ignore[arg-type]
        for id, row in zip(rows, logits, strict=True):
            answer_of[id].logits.append(row)
        outputs = [StepOutput(id, token) for id, token in zip(rows, tokens, strict=True)]
        for event in scheduler.on_step(outputs):
            if isinstance(event, Token):
                answer_of[event.id].tokens.append(event.token)
        check_invariants(scheduler)
    assert scheduler.blocks.free_blocks == scheduler.blocks.total_blocks
    stats = scheduler.stats()
    return Run(
        answers,
        stats.preemptions,
        stats.admission_preemptions,
        stats.found_tokens,
        stats.restored_tokens,
    )


def same_bits(a: Answer, b: Answer) -> bool:
    """Whether two answers agree in every token and in every bit of their logits."""
    return a.tokens == b.tokens and torch.equal(torch.stack(a.logits), torch.stack(b.logits))
