"""What came of a load, simulated or measured: of each request, and of the fleet over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Status: TypeAlias = Literal["ok", "refused", "failed"]
"""It was answered in full; it was turned away (429, 503, 504); anything else."""

Setting: TypeAlias = str | int | float | bool | None


@dataclass(slots=True)
class Outcome:
    """What came of one request. Times in seconds from the load's beginning; None: never.

    Attributes:
        index: of the request in the load.
        at: when it was to be sent.
        priority, tenant, prompt_tokens: as in the load.
        output_tokens: that it got.
        status: how it ended.
        reason: why it was not answered, as in the API's error type and code; else empty.
        placed_at: when it was first placed on a replica; a live server does not tell.
        first_token_at, last_token_at: when they reached the client.
        replica: the last that worked on it; empty if unknown.
        attempts: replicas that it was placed on.
        cached_tokens: of its prompt, found in a prefix cache.
        longest_gap_s: between two tokens of it.
    """

    index: int
    at: float
    priority: int
    tenant: str
    prompt_tokens: int
    output_tokens: int = 0
    status: Status = "failed"
    reason: str = ""
    placed_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    replica: str = ""
    attempts: int = 0
    cached_tokens: int = 0
    longest_gap_s: float = 0.0

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_token_at is None else self.first_token_at - self.at

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None for fewer than two tokens."""
        if self.first_token_at is None or self.last_token_at is None or self.output_tokens < 2:
            return None
        return (self.last_token_at - self.first_token_at) / (self.output_tokens - 1)

    @property
    def wait_s(self) -> float | None:
        """Time until it was placed."""
        return None if self.placed_at is None else self.placed_at - self.at


@dataclass(frozen=True, slots=True)
class Sample:
    """The fleet at one moment.

    Attributes:
        at: seconds from the load's beginning.
        wanted: replicas that there are meant to be.
        serving: replicas that serve.
        starting: replicas on their way up.
        queued: requests that wait in the router.
        oldest_wait_s: of these.
        waiting: requests in the replicas' own queues.
        running: requests that hold blocks.
        free_blocks, total_blocks: of the replicas that serve.
    """

    at: float
    wanted: int
    serving: int
    starting: int
    queued: int
    oldest_wait_s: float
    waiting: int
    running: int
    free_blocks: int
    total_blocks: int


@dataclass(frozen=True, slots=True)
class Run:
    """One load on one fleet.

    Attributes:
        name: tells it from others in one report, such as "blocks, 4..64".
        kind: how it came about.
        load: the load's name.
        settings: what made it so, in the order to be shown.
        outcomes: one for each request, in the load's order.
        samples: once a period, oldest first.
        seconds: from the load's beginning to the last answer's end.
        replica_s: replica-seconds that were paid for, those of replicas that start included.
        busy_s: replica-seconds in which a replica computed.
        counts: of what happened, such as preemptions, recomputed_tokens, restored_tokens, steps,
            placements, bounces, lost_replicas; a live server tells only some.
    """

    name: str
    kind: Literal["simulated", "measured"]
    load: str
    settings: Mapping[str, Setting]
    outcomes: Sequence[Outcome]
    samples: Sequence[Sample]
    seconds: float
    replica_s: float
    busy_s: float
    counts: Mapping[str, float] = field(default_factory=dict)
