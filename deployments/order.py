"""Order: one sequence to generate, and the two ways in which it can come to nothing."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from deployments.messages import Refusal, ReplicaInfo
from deployments.prefix import Prefix
from engine.request import SamplingParams
from engine.submission import Submission
from router.ticket import Ticket

FIRST_TOKEN: Final = "first token"
END: Final = "end"


class Refused(Exception):
    """The request was turned away.

    Attributes:
        refusal: why.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal


class Failed(Exception):
    """The request was taken and could not be finished; the message is for the log."""


@dataclass(frozen=True, slots=True)
class Order:
    """One sequence to generate.

    Attributes:
        key: unique in the deployment.
        prompt: token ids.
        params: with a seed, so that a repetition repeats.
        priority: higher is more urgent.
        arrival: wall clock, ms.
        began: the same moment on this process's monotonic clock, in seconds.
        request_id: the HTTP request's x-request-id, for logs.
        tenant: whom the work is for; empty without a key file.
        first_token_at: when, on this process's monotonic clock, it is given up without a
            first token; None is never.
        end_at: when it is given up in any case.
        traceparent: the W3C trace context that its spans belong to; empty without tracing.
        salt: only requests with the same one share what a prefix cache keeps.
        prefix: of the prompt; None if the router does not look.
    """

    key: str
    prompt: tuple[int, ...]
    params: SamplingParams
    priority: int
    arrival: int
    began: float
    request_id: str
    tenant: str = ""
    first_token_at: float | None = None
    end_at: float | None = None
    traceparent: str = ""
    salt: bytes = b""
    prefix: Prefix | None = None

    def deadline(self, begun: bool) -> tuple[float, str] | None:
        """When it is given up and by which limit, the message of the refusal; None is never.

        Args:
            begun: it has its first token.
        """
        limits = [] if self.end_at is None else [(self.end_at, END)]
        if self.first_token_at is not None and not begun:
            limits.append((self.first_token_at, FIRST_TOKEN))
        return min(limits, default=None)

    def left_s(self, begun: bool) -> float | None:
        """Seconds until it is given up, None for never; negative when that was to be before."""
        deadline = self.deadline(begun)
        return None if deadline is None else deadline[0] - time.monotonic()

    def ticket(
        self, key: str, call: str, info: ReplicaInfo, generated: Sequence[int], again: bool
    ) -> Ticket:
        """Return the ticket for one life of the sequence.

        Args:
            key: the life's own name.
            call: the name of the HTTP request.
            info: of the replicas.
            generated: tokens that it has.
            again: it had a place before.
        """
        blocks_now, blocks_max = blocks_of(
            len(self.prompt), len(generated), self.params.max_tokens, info
        )
        return Ticket(
            id=key,
            priority=self.priority,
            arrival=self.arrival,
            blocks_now=blocks_now,
            blocks_max=blocks_max,
            again=again,
            # What has begun goes on only where the same bits come out.
            kind=info.fingerprint if generated else "",
            tenant=self.tenant,
            cost=0 if again else len(self.prompt),
            call=call,
            start_within_s=self.left_s(bool(generated)),
            prefix=self._prefix(info.block_tokens, generated),
        )

    def _prefix(self, block_tokens: int, generated: Sequence[int]) -> tuple[int, ...]:
        if self.prefix is None:
            return ()
        if not generated:
            return self.prefix.told
        rest = self.prompt[self.prefix.blocks * block_tokens :]
        return self.prefix.extended((*rest, *generated), block_tokens)

    def submission(self, key: str, generated: tuple[int, ...]) -> Submission:
        """Return what a replica is given for one life of the sequence, of this name."""
        return Submission(
            key=key,
            prompt=self.prompt,
            params=self.params,
            priority=self.priority,
            arrival=self.arrival,
            generated=generated,
            salt=self.salt,
        )


def blocks_of(
    prompt_tokens: int, generated: int, max_tokens: int, info: ReplicaInfo
) -> tuple[int, int]:
    """Return the blocks that a sequence needs to start, and at its longest.

    Args:
        prompt_tokens: of its prompt.
        generated: tokens that it has.
        max_tokens: that it may have.
        info: of the replicas.
    """
    now = -(-(prompt_tokens + generated) // info.block_tokens)
    most = min(prompt_tokens + max_tokens, info.max_model_len)
    return now, max(-(-most // info.block_tokens), now)
