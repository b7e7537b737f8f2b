"""The limits of one scheduler, and the numbers that say where it stands."""

from dataclasses import dataclass

from engine.rank import SchedPolicy
from engine.request import is_int, require


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The limits of one scheduler.

    Attributes:
        max_seqs: requests that run at once, >= 1.
        max_batch_tokens: tokens that a step computes, >= 1; a longer whole prompt runs alone.
        max_waiting: new requests that may wait; preempted ones are not counted.
        policy: what the rank is made of.
        aging_steps: clock ticks of waiting that one level of priority is worth, >= 0.
        max_model_len: tokens of the longest sequence, prompt and output, >= 2.
        admission_preemption: levels of priority by which a waiting request must exceed a
            running one to take its place, >= 0; 0: nobody does. FCFS has no levels.
        max_admission_preemptions: times that one request makes way so, >= 1.
        max_passes: times that one waiting request may be passed by a smaller one that fits
            where it does not, >= 0; 0: nobody passes.

    Raises:
        InvalidParam: for the first field that is out of its range.
    """

    max_seqs: int = 64
    max_batch_tokens: int = 2048
    max_waiting: int = 256
    policy: SchedPolicy = SchedPolicy.PRIORITY
    aging_steps: int = 100
    max_model_len: int = 8192
    admission_preemption: int = 0
    max_admission_preemptions: int = 3
    max_passes: int = 0

    def __post_init__(self) -> None:
        lowest = (
            ("max_seqs", 1),
            ("max_batch_tokens", 1),
            ("max_waiting", 0),
            ("aging_steps", 0),
            ("max_model_len", 2),
            ("admission_preemption", 0),
            ("max_admission_preemptions", 1),
            ("max_passes", 0),
        )
        for name, low in lowest:
            value = getattr(self, name)
            require(is_int(value, low), name, value, f"an integer from {low}")
        known = self.policy in list(SchedPolicy)
        require(known, "policy", self.policy, f"one of {', '.join(SchedPolicy)}")
        object.__setattr__(self, "policy", SchedPolicy(self.policy))


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Where the scheduler stands; reading it costs the same however much there is to do.

    Attributes:
        total_blocks: blocks of the pool.
        free_blocks: those that nobody holds, those of a prefix cache included.
        running: requests that hold blocks.
        waiting: requests in the queue, new and preempted.
        waiting_blocks: blocks that those need for the tokens they have so far.
        preemptions: how often a request lost its blocks, since the start.
        admission_preemptions: those of them that made way for a newcomer.
        gap_admissions: requests admitted before one that ranks before them, since the start.
        recomputed_tokens: tokens computed again after a preemption, since the start.
        steps: steps planned, since the start.
        queried_tokens: tokens of requests that a prefix cache was asked for, since the start.
        found_tokens: those of them whose K and V were there.
        restored_tokens: tokens of preempted requests that came back from host memory.
    """

    total_blocks: int
    free_blocks: int
    running: int
    waiting: int
    waiting_blocks: int
    preemptions: int
    admission_preemptions: int
    gap_admissions: int
    recomputed_tokens: int
    steps: int
    queried_tokens: int = 0
    found_tokens: int = 0
    restored_tokens: int = 0
