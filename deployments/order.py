"""Order: one sequence to generate, and the two ways in which it can come to nothing."""

from dataclasses import dataclass

from deployments.messages import Refusal
from engine.request import SamplingParams


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
