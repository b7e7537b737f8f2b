"""EngineConfig: everything that shapes an engine, and what needs no model to be made of it."""

from dataclasses import dataclass

from engine.blocks import BlockSpace, FreeListBlocks
from engine.prefill import Chunked, Paced, PrefillPolicy, WholePrompt
from engine.prefix_cache import BlockManager
from engine.rank import SchedPolicy
from engine.scheduler_config import SchedulerConfig
from engine.step_times import StepTimes


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that shapes an engine.

    Attributes:
        model: ``demo``, a local folder or a Hub name.
        dtype: ``auto`` is the one that the weights were saved in.
        device: ``auto`` is cuda if there is one, else cpu.
        num_blocks: blocks of the pool; None sizes it from the memory there is.
        block_tokens: tokens a block.
        max_num_seqs: sequences a step.
        max_batch_tokens: tokens a step.
        max_model_len: longest sequence; None is the model's own limit.
        max_waiting: requests that may wait for their first admission.
        policy: how requests are ordered.
        aging: ticks of the clock that one level of priority is worth.
        admission_preemption: levels of priority by which a waiting request must exceed a
            running one to take its place; 0: nobody does.
        max_admission_preemptions: times that one request makes way so.
        max_passes: times that one waiting request may be passed by smaller ones that fit where
            it does not; 0: nobody passes.
        swap_gib: host memory for the blocks of preempted requests, in GiB; 0: they are always
            computed again.
        prefill_chunk: longest piece of a prompt a step; None takes prompts whole.
        target_tpot_ms: milliseconds that a token of a running request should take while
            prompts are computed, which are cut shorter for it; None cuts all alike.
        prefix_cache: find again what other requests have computed of the same beginning.
        told_depths: which blocks of a sequence, the first being 1, others are told that it holds;
            None: all.
        overlap: plan the next step and make the last one's text while the model runs.
        threads: CPU threads of the model; None is one for each core.
        kernels: ``native`` are this package's own in C++ for CPUs, ``triton`` those for GPUs,
            ``torch`` torch's; ``auto`` takes its own where they can be used.
        allow_variance: serve even if the start-up check finds that bits vary.
        debug: check the scheduler's books after every step, which costs time.
    """

    model: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    num_blocks: int | None = None
    block_tokens: int = 16
    max_num_seqs: int = 64
    max_batch_tokens: int = 2048
    max_model_len: int | None = None
    max_waiting: int = 256
    policy: SchedPolicy = SchedPolicy.PRIORITY
    aging: int = 100
    admission_preemption: int = 0
    max_admission_preemptions: int = 3
    max_passes: int = 0
    swap_gib: float = 0.0
    prefill_chunk: int | None = 512
    target_tpot_ms: float | None = None
    prefix_cache: bool = True
    told_depths: frozenset[int] | None = None
    overlap: bool = False
    threads: int | None = None
    kernels: str = "auto"
    allow_variance: bool = False
    debug: bool = False

    def scheduler(self, max_model_len: int) -> SchedulerConfig:
        """Return the limits of its scheduler.

        Args:
            max_model_len: longest sequence, as it turned out to be.
        """
        return SchedulerConfig(
            max_seqs=self.max_num_seqs,
            max_batch_tokens=self.max_batch_tokens,
            max_waiting=self.max_waiting,
            policy=self.policy,
            aging_steps=self.aging,
            max_model_len=max_model_len,
            admission_preemption=self.admission_preemption,
            max_admission_preemptions=self.max_admission_preemptions,
            max_passes=self.max_passes,
        )

    def blocks(self, num_blocks: int) -> BlockSpace:
        """Return the books of a pool of so many blocks."""
        if not self.prefix_cache:
            return FreeListBlocks(self.block_tokens, range(num_blocks))
        return BlockManager(self.block_tokens, range(num_blocks), self.told_depths)

    def prefill_policy(self, times: StepTimes) -> PrefillPolicy:
        """Return how prompts are cut.

        Args:
            times: what steps cost; somebody has to tell it.
        """
        if self.target_tpot_ms is not None:
            longest = self.prefill_chunk or self.max_batch_tokens
            return Paced(self.target_tpot_ms / 1e3, longest, times)
        return WholePrompt() if self.prefill_chunk is None else Chunked(self.prefill_chunk)
