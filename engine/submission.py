"""What crosses the engine's border: requests in, deltas out."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from engine.request import FinishReason, Request, SamplingParams, require
from engine.scheduler_config import SchedulerStats


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as it is handed to an engine.

    Attributes:
        key: the caller's name for it, unique among unfinished requests.
        prompt: token ids.
        params: how tokens are chosen and when it has enough.
        priority: higher is more urgent.
        arrival: tick of the first arrival in the scheduler's clock; None takes now.
        generated: tokens produced elsewhere, which it goes on from.
        start_by: tick after which it is not to be started any more; None is never.
        salt: requests with different salts share nothing of a prefix cache.
    """

    key: str
    prompt: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    arrival: int | None = None
    generated: tuple[int, ...] = ()
    start_by: int | None = None
    salt: bytes = b""

    def request(self) -> Request:
        """What the scheduler needs to know of it."""
        return Request(
            prompt=list(self.prompt),
            max_tokens=self.params.max_tokens,
            priority=self.priority,
            arrival=self.arrival,
            generated=list(self.generated),
            salt=self.salt,
            skip_cache=self.scored,
        )

    @property
    def scored(self) -> bool:
        """Whether its prompt's log-probabilities are told, so that all of it is computed."""
        return self.params.prompt_logprobs is not None and not self.generated

    def check_ids(self, vocab: int) -> None:
        """Check that all tokens, those of the parameters too, are below ``vocab``.

        Raises:
            InvalidParam: one is not, and would be an index out of range in the model.
        """
        params = self.params
        named = (
            ("prompt", self.prompt),
            ("generated", self.generated),
            ("stop_token_ids", params.stop_token_ids),
            ("logit_bias", tuple(token for token, _ in params.logit_bias)),
        )
        for name, ids in named:
            if ids and not (min(ids) >= 0 and max(ids) < vocab):
                bad = next(id for id in ids if not 0 <= id < vocab)
                require(False, name, bad, f"token ids from 0 to {vocab - 1}")


EXPIRED: Final = "expired"
"""The error of a request that was not started in time."""
GRAMMAR_TOO_COMPLEX: Final = "GuidanceError"
"""What the error of a request begins with whose grammar turned out to cost too much."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely a token was.

    Attributes:
        token: its id.
        logprob: the natural logarithm of its probability, finite.
        top: the likeliest tokens in its place and theirs, likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Detail:
    """What goes with a delta beyond its tokens and text, when there is something.

    Attributes:
        queued_s: on a request's first delta in this engine: seconds from ``submit`` to the
            first step that computed something of it.
        logprobs: one for each of the delta's tokens, if the request asked for them.
        prompt_logprobs: on the first delta, if the request asked for them and brought no
            generated tokens: one for each token of the prompt, None for the first.
        cached_tokens: with ``queued_s``: tokens of the prompt that a prefix cache held; 0 if
            the request brought generated tokens.
    """

    queued_s: float | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    cached_tokens: int = 0


class Delta(NamedTuple):
    """What one step did for one request.

    A named tuple, since one is made for each token: a frozen dataclass takes three times as
    long.

    Attributes:
        key: the request.
        tokens: new tokens, the one that ends it included.
        text: new text, fit to be shown: no half characters, nothing of a stop string.
        finish: set when the request ended by itself; this is its last delta.
        error: set when the request failed; this is its last delta.
        detail: what else there is to say, if there is.
    """

    key: str
    tokens: tuple[int, ...] = ()
    text: str = ""
    finish: FinishReason | None = None
    error: str | None = None
    detail: Detail | None = None


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step did, for whoever carries it on."""

    deltas: tuple[Delta, ...]
    stats: SchedulerStats


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an engine stands at one moment.

    Attributes:
        stats: what its requests hold and wait for.
        keys: the requests of which ``stats`` speaks. Others have ended, and their blocks are
            free, though that may still have to be told.
    """

    stats: SchedulerStats
    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class Progress:
    """Whether the loop moves: busy with the same step count for long means it hangs.

    Attributes:
        steps: steps that have ended.
        busy: there are unfinished requests, or a step is under way.
        since: monotonic seconds since the last step ended or the loop became busy.
    """

    steps: int
    busy: bool
    since: float


class DuplicateKey(ValueError):
    """A request with this key is unfinished already."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"request {self.key!r} is unfinished already"


class EngineFailed(RuntimeError):
    """The step loop has ended, by an error or by ``stop``; nothing is accepted any more."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the engine has ended: {self.reason}"
