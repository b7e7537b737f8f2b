"""What travels between the gateway, the router and the replicas.

What is sent for each token is a plain tuple, which pickles several times faster than a
dataclass; what is sent once a request, or a few times a second, is a dataclass.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from deployments.doors import Door
from engine.request import (
    AdmitError,
    EmptyPrompt,
    FinishReason,
    InvalidParam,
    NeverFits,
    PromptTooLong,
    QueueFull,
)
from engine.submission import Detail

Event: TypeAlias = tuple[str, tuple[int, ...], str, str | None, str | None, Detail | None]
"""One request's share of a step: key, new tokens, new text, finish reason, error, detail.

The one with a finish reason or an error is a request's last.
"""

Batch: TypeAlias = tuple[Event, ...]
"""All events of one step for one gateway."""


Word: TypeAlias = str | frozenset[str] | None
"""What the router tells gateways: a replica that it has given up, all that there are, nothing."""


class RefusalKind(StrEnum):
    """Why a request was turned away."""

    BUSY = "busy"
    NO_REPLICA = "no_replica"
    NEVER_FITS = "never_fits"
    TOO_MANY = "too_many"
    QUEUE_FULL = "queue_full"
    TOO_LONG = "too_long"
    EMPTY = "empty"
    INVALID = "invalid"
    EXPIRED = "expired"
    TENANT_BUSY = "tenant_busy"
    TENANT_RATE = "tenant_rate"
    ABANDONED = "abandoned"
    NO_STREAM = "no_stream"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A "no" that crosses processes as a value: Serve would log a raised one as a failure.

    Attributes:
        kind: why.
        retry_after: seconds after which to try again, for BUSY, NO_REPLICA, TENANT_BUSY and
            TENANT_RATE.
        current: what was asked for or is there, in the kind's unit.
        limit: what there can be, in the same unit.
        message: a sentence, for INVALID and OTHER.
        param: the parameter that is wrong, for INVALID.
    """

    kind: RefusalKind
    retry_after: float = 0.0
    current: int = 0
    limit: int = 0
    message: str = ""
    param: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """What a gateway must know of a replica, sent as the first message of its stream.

    Attributes:
        fingerprint: of its numerics; a stream goes on only where it is the same.
        block_tokens: tokens in a block of the KV cache.
        total_blocks: blocks of the whole pool.
        max_model_len: the context, in tokens.
        door: where this gateway, and no other, has a way past Serve; None: nowhere.
    """

    fingerprint: str
    block_tokens: int
    total_blocks: int
    max_model_len: int
    door: Door | None = None


@dataclass(frozen=True, slots=True)
class Vitals:
    """How a replica is, beside what the router needs to place requests.

    Attributes:
        healthy: its step loop runs, and moves if it has work.
        preemptions: since the replica started.
        recomputed_tokens: tokens computed again because of them.
        admission_preemptions: those preemptions that made way for an urgent request.
        prefix_queries: tokens that were looked for in its prefix cache.
        prefix_hits: those of them that were there.
        restored_tokens: tokens that came back from host memory after a preemption.
        gap_admissions: requests that it let in before larger ones that rank before them.
    """

    healthy: bool
    preemptions: int
    recomputed_tokens: int
    admission_preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    restored_tokens: int = 0
    gap_admissions: int = 0

    def no_less_than(self, before: "Vitals") -> "Vitals":
        """Return these with no counter below what it was."""
        return Vitals(
            self.healthy,
            max(self.preemptions, before.preemptions),
            max(self.recomputed_tokens, before.recomputed_tokens),
            max(self.admission_preemptions, before.admission_preemptions),
            max(self.prefix_queries, before.prefix_queries),
            max(self.prefix_hits, before.prefix_hits),
            max(self.restored_tokens, before.restored_tokens),
            max(self.gap_admissions, before.gap_admissions),
        )


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The last message of a replica that is to go: what it had running goes on elsewhere."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A call over a lane.

    Attributes:
        number: of the call, which its answer has too.
        method: its name.
        arguments: of the method.
    """

    number: int
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Nobody waits for the answer to this call any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Told:
    """The answer to a call, or the error that it raised, which is a bug."""

    number: int
    value: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Heard:
    """The router's answer to a report.

    Attributes:
        full: the next report should name all that the replica holds.
        demand: what the autoscaler is to know, which asks replicas only; empty without one.
    """

    full: bool
    demand: Mapping[str, float] = field(default_factory=dict)


def unavailable(rng: random.Random) -> Refusal:
    """Nobody serves: come back in about five seconds, but not all in the same one."""
    return Refusal(RefusalKind.NO_REPLICA, retry_after=rng.uniform(3.75, 6.25))


def refuse(error: AdmitError | InvalidParam) -> Refusal:
    """Turn an engine's refusal into one that crosses processes."""
    if isinstance(error, QueueFull):
        return Refusal(RefusalKind.QUEUE_FULL, current=error.waiting, limit=error.limit)
    if isinstance(error, PromptTooLong):
        return Refusal(RefusalKind.TOO_LONG, current=error.tokens, limit=error.limit)
    if isinstance(error, NeverFits):
        return Refusal(RefusalKind.NEVER_FITS, current=error.blocks, limit=error.total)
    if isinstance(error, EmptyPrompt):
        return Refusal(RefusalKind.EMPTY)
    if isinstance(error, InvalidParam):
        return Refusal(RefusalKind.INVALID, message=str(error), param=error.name)
    return Refusal(RefusalKind.OTHER, message=str(error))


def finish_reason(text: str | None) -> FinishReason | None:
    """Read the finish reason of an event."""
    return None if text is None else FinishReason(text)
