"""What goes into the engine for one request, what comes out, and why it may be refused.

Every type here travels between threads or processes, so the dataclasses are plain
data and every exception keeps its fields through pickling: the fields are the
exception's ``args``, and the sentence is made from them when it is asked for.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

MAX_LOGPROBS: Final = 20
"""Likeliest tokens that may be told of one place, as in the OpenAI API."""
BIAS: Final = (-100, 100)
"""The range of a bias, as in the OpenAI API: beyond, a token is as good as banned or forced."""


class FinishReason(StrEnum):
    """Why a request ended by itself; the values are those of the OpenAI API."""

    STOP = "stop"
    LENGTH = "length"


class InvalidParam(ValueError):
    """A setting or a parameter of a request is outside what can be honoured.

    Attributes:
        name: the parameter, as the caller spells it.
        value: what was given.
        limit: what is accepted, in words, e.g. ``"a number from 0 to 2"``.
    """

    def __init__(self, name: str, value: object, limit: str) -> None:
        super().__init__(name, value, limit)
        self.name = name
        self.value = value
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.name} must be {self.limit}, not {self.value!r}"


class AdmitError(Exception):
    """A request was refused when it was added; nothing of it is kept."""


class QueueFull(AdmitError):
    """As many requests wait as may wait.

    Attributes:
        waiting: requests that wait for their first admission.
        limit: how many may.
    """

    def __init__(self, waiting: int, limit: int) -> None:
        super().__init__(waiting, limit)
        self.waiting = waiting
        self.limit = limit

    def __str__(self) -> str:
        return f"the queue is full: {self.waiting} requests wait, the limit is {self.limit}"


class EmptyPrompt(AdmitError):
    """A prompt without tokens gives the model nothing to go on from."""

    def __init__(self) -> None:
        super().__init__()

    def __str__(self) -> str:
        return "the prompt has no tokens"


class PromptTooLong(AdmitError):
    """The context leaves no room for even one new token.

    Attributes:
        tokens: prompt tokens, with those generated elsewhere.
        limit: the context length that they must stay below.
    """

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(tokens, limit)
        self.tokens = tokens
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.tokens} tokens leave no room in a context of {self.limit}"


class NeverFits(AdmitError):
    """The longest the request may become needs more blocks than there are at all.

    Attributes:
        blocks: blocks that the longest sequence needs.
        total: blocks of the whole pool.
    """

    def __init__(self, blocks: int, total: int) -> None:
        super().__init__(blocks, total)
        self.blocks = blocks
        self.total = total

    def __str__(self) -> str:
        return f"the request may need {self.blocks} blocks, the pool has {self.total}"


def require(ok: bool, name: str, value: object, limit: str) -> None:
    """Raise InvalidParam(name, value, limit) unless ``ok``."""
    if not ok:
        raise InvalidParam(name, value, limit)


def is_int(value: Any, low: int | None = None) -> bool:
    """Whether ``value`` is an integer (True and False are not) and at least ``low``."""
    return isinstance(value, int) and not isinstance(value, bool) and (low is None or value >= low)


def is_number(value: Any, low: float, high: float) -> bool:
    """Whether ``value`` is a finite number from ``low`` to ``high``, both included."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value) and low <= value <= high
    except OverflowError:  # an integer that no float can hold
        return False


def _tuple(value: Any) -> tuple[Any, ...] | None:
    return tuple(value) if isinstance(value, tuple | list) else None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token of one request is chosen, and when it has enough.

    Attributes:
        max_tokens: tokens to generate at most, >= 1.
        temperature: 0 takes the likeliest token; up to 2.
        top_p: keep the likeliest tokens that together hold this much probability, (0, 1].
        top_k: keep this many of the likeliest tokens; 0 keeps all (-1 is read as 0).
        min_p: drop tokens less likely than this share of the likeliest, [0, 1].
        presence_penalty: subtracted once from tokens already generated, [-2, 2].
        frequency_penalty: subtracted for each time a token was generated, [-2, 2].
        repetition_penalty: divides the logits of tokens seen in prompt or output,
            [0.001, 1000]: beyond, float32 overflows.
        seed: together with the position decides every draw; None leaves it to the caller.
        stop: texts that end the request; they are not part of the answer.
        stop_token_ids: tokens that end the request.
        ignore_eos: go on past the model's end-of-sequence tokens.
        min_tokens: tokens to generate before anything may end the request, from 0 to
            ``max_tokens``.
        logit_bias: pairs of a token and what is added to its logit, each in [-100, 100];
            a mapping is read as its items.
        logprobs: likeliest tokens to tell with each generated one, [0, 20]; None tells
            nothing, 0 only what the token itself had.
        prompt_logprobs: the same for each token of the prompt.
        grammar: what the answer must match, as ``engine.guidance`` takes it; None is
            anything.

    Raises:
        InvalidParam: for the first field that is out of its range.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        if is_int(self.top_k) and self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        require(is_int(self.max_tokens, 1), "max_tokens", self.max_tokens, "an integer from 1")
        self._require_number("temperature", 0.0, 2.0)
        self._require_number("top_p", 0.0, 1.0)
        require(self.top_p > 0, "top_p", self.top_p, "a number above 0 and up to 1")
        require(is_int(self.top_k, 0), "top_k", self.top_k, "an integer from 0, or -1 for all")
        self._require_number("min_p", 0.0, 1.0)
        self._require_number("presence_penalty", -2.0, 2.0)
        self._require_number("frequency_penalty", -2.0, 2.0)
        self._require_number("repetition_penalty", 0.001, 1000.0)
        require(self.seed is None or is_int(self.seed), "seed", self.seed, "an integer")
        self._require_stops()
        least = is_int(self.min_tokens, 0) and self.min_tokens <= self.max_tokens
        limit = f"an integer from 0 to max_tokens, {self.max_tokens}"
        require(least, "min_tokens", self.min_tokens, limit)
        self._require_bias()
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            known = count is None or (is_int(count, 0) and count <= MAX_LOGPROBS)
            require(known, name, count, f"an integer from 0 to {MAX_LOGPROBS}")
        grammar: Any = self.grammar
        text = grammar is None or (isinstance(grammar, str) and grammar != "")
        require(text, "grammar", grammar, "a non-empty string")

    def _require_number(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        require(is_number(value, low, high), name, value, f"a number from {low:g} to {high:g}")

    def _require_stops(self) -> None:
        # A bare string is a sequence of strings too: without this, stop="END" would
        # stop at every "E".
        stop, ids = _tuple(self.stop), _tuple(self.stop_token_ids)
        texts = stop is not None and all(isinstance(text, str) and text for text in stop)
        require(texts, "stop", self.stop, "a tuple of non-empty strings")
        tokens = ids is not None and all(is_int(token, 0) for token in ids)
        require(tokens, "stop_token_ids", self.stop_token_ids, "a tuple of token ids")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", ids)

    def _require_bias(self) -> None:
        given: Any = self.logit_bias
        items = _tuple([*given.items()] if isinstance(given, Mapping) else given)
        pairs = [_tuple(item) or () for item in items or ()]
        ok = items is not None and all(
            len(pair) == 2 and is_int(pair[0], 0) and is_number(pair[1], *BIAS) for pair in pairs
        )
        limit = f"pairs of a token id and a number from {BIAS[0]} to {BIAS[1]}, no token twice"
        require(ok and len({pair[0] for pair in pairs}) == len(pairs), "logit_bias", given, limit)
        biases = tuple((token, float(bias)) for token, bias in pairs)
        object.__setattr__(self, "logit_bias", biases)


@dataclass(slots=True)
class Request:
    """What the scheduler needs to know of a request.

    Attributes:
        prompt: token ids, at least one.
        max_tokens: tokens to generate at most, those in ``generated`` included.
        priority: higher is more urgent.
        arrival: tick of the first arrival, in the scheduler's clock; None takes the
            clock's tick when the request is added.
        generated: tokens already produced elsewhere, which this request goes on from.
        salt: requests with different salts share no cached blocks.
        skip_cache: compute all tokens of the prompt, also where a cache holds their K and V.
    """

    prompt: list[int]
    max_tokens: int
    priority: int = 0
    arrival: int | None = None
    generated: list[int] = field(default_factory=list)
    salt: bytes = b""
    skip_cache: bool = False


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What the runner made of one row of a step.

    Attributes:
        id: the request.
        token: the sampled token.
        stop: the token, or the text it completes, ends the request.
    """

    id: int
    token: int
    stop: bool = False


@dataclass(frozen=True, slots=True)
class Token:
    """A request grew by one token, the one that ends it included."""

    id: int
    token: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A request ended and its blocks are free; follows its last Token."""

    id: int
    reason: FinishReason
