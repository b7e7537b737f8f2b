"""A call: one HTTP request, understood, with what the engine must do for it.

The two endpoints differ in how a prompt comes about and in how a choice is spelt; what
they share is here.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from deployments.openai.body import read_priority, refuse_unbuilt_headers
from deployments.openai.errors import BadRequest, invalid, too_long, unknown_model
from deployments.openai.models import GenerationRequest
from deployments.validation import show
from engine.request import FinishReason, InvalidParam, SamplingParams

_SEED_BITS = 63
_ID_BITS = 128


@dataclass(frozen=True, slots=True)
class Served:
    """The model that is served, and how much one request may ask of it.

    Attributes:
        name: as clients spell it.
        max_model_len: prompt and answer together, in tokens.
        vocab_size: token ids are below it.
        max_prompts: prompts in one request.
        max_priority: largest magnitude of a priority.
        vllm_priority: the body's priority counts as in vLLM, lower being more urgent.
        longest_token: characters that one token stands for at most, None if not known.
    """

    name: str
    max_model_len: int
    vocab_size: int
    max_prompts: int = 128
    max_priority: int = 1_000
    vllm_priority: bool = False
    longest_token: int | None = None

    def card(self, created: int) -> dict[str, Any]:
        """Return the entry of GET /v1/models."""
        return {
            "id": self.name,
            "object": "model",
            "created": created,
            "owned_by": "tidegate",
            "max_model_len": self.max_model_len,
        }

    def listing(self, created: int) -> dict[str, Any]:
        """Return the body of GET /v1/models; ``created`` is a Unix time in seconds."""
        return {"object": "list", "data": [self.card(created)]}


@dataclass(frozen=True, slots=True)
class Job:
    """One choice to generate; its place in ``Call.jobs`` is the choice's index."""

    prompt: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Choice:
    """What came of a job."""

    text: str
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call, all jobs together; a prompt counts once for each job of its own."""

    prompt: int
    completion: int
    cached: int = 0

    def body(self) -> dict[str, Any]:
        """Return the ``usage`` object."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


@dataclass(frozen=True, slots=True)
class Shape:
    """How an endpoint spells a stream's chunks; the strings are pieces of compact JSON.

    Attributes:
        object: the chunk's ``object``.
        opening: sent once for each choice, when its first token exists; None sends an
            empty text instead when that token has none.
        text: what stands before the text, as a JSON string; ``after`` follows it.
        after: what stands after the text.
        closing: what stands in the chunk that says why the choice ended.
    """

    object: str
    opening: str | None
    text: str
    after: str
    closing: str


@dataclass(frozen=True, slots=True)
class Call(ABC):
    """One HTTP request.

    Attributes:
        id: of the answer.
        created: Unix time in seconds.
        model: name of the model, for the answer.
        stream: the client wants events.
        include_usage: the stream ends with a chunk that carries the usage.
        priority: higher is more urgent.
        service_tier: echoed when the client asked for one.
        jobs: one for each choice.
    """

    id: str
    created: int
    model: str
    stream: bool
    include_usage: bool
    priority: int
    service_tier: str | None
    jobs: tuple[Job, ...]

    object: ClassVar[str]
    shape: ClassVar[Shape]

    @abstractmethod
    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        """Return one entry of ``choices`` in an answer that is not streamed."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, for the usage."""
        return sum(len(job.prompt) for job in self.jobs)

    def answer(
        self, choices: Sequence[Choice], usage: Usage, fingerprint: str | None
    ) -> dict[str, Any]:
        """Return the body of an answer that is not streamed.

        Args:
            choices: in the order of ``jobs``.
            usage: of all jobs together.
            fingerprint: of the replica's numerics.
        """
        body = {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": fingerprint,
            "choices": [self.choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage.body(),
        }
        return body if self.service_tier is None else {**body, "service_tier": self.service_tier}


def require_model(body: Mapping[str, Any], served: Served) -> None:
    """Check that the request is for the served model; without a name, it is.

    Raises:
        NotFound: another model.
        BadRequest: the name is not a string.
    """
    name = body.get("model", served.name)
    if not isinstance(name, str):
        raise BadRequest(f"'model' must be a string, not {show(name)}.", "model")
    if name != served.name:
        raise unknown_model(name)


def priority_of(request: GenerationRequest, headers: Mapping[str, str], served: Served) -> int:
    """Return the call's priority and refuse headers that are not built.

    Raises:
        BadRequest: see ``read_priority``.
    """
    refuse_unbuilt_headers(headers)
    return read_priority(request.priority, headers, served.max_priority, served.vllm_priority)


def jobs_of(
    request: GenerationRequest,
    prompts: Sequence[tuple[int, ...]],
    served: Served,
    default_tokens: int | None,
    field: str,
    rng: random.Random,
) -> Iterator[Job]:
    """Pair every prompt with its sampling parameters.

    Args:
        request: the validated body.
        prompts: token ids.
        served: bounds them.
        default_tokens: to generate when the client does not say; None is all there is
            room for.
        field: the name of the prompt's field, for errors.
        rng: draws a seed for each job when the client gave none; drawn once, here, so
            that a job that is computed again elsewhere repeats itself.

    Raises:
        BadRequest: a prompt is empty or too long, or an id is out of the vocabulary.
    """
    _require_ids(request.stop_token_ids, served.vocab_size, "stop_token_ids")
    for prompt in prompts:
        if not prompt:
            raise BadRequest(f"'{field}' must not be empty.", field)
        _require_ids(prompt, served.vocab_size, field)
        tokens = _budget(len(prompt), request.asked_tokens, default_tokens, served, field)
        try:
            yield Job(prompt, request.sampling(tokens, rng.getrandbits(_SEED_BITS)))
        except InvalidParam as error:
            raise invalid(error) from None


def new_id(prefix: str, rng: random.Random) -> str:
    """Return an id for an answer."""
    return f"{prefix}-{rng.getrandbits(_ID_BITS):032x}"


def tier_used(asked: str | None) -> str | None:
    """Return the service tier to echo: there is only one."""
    return None if asked is None else "default"


def _budget(tokens: int, asked: int | None, default: int | None, served: Served, field: str) -> int:
    room = served.max_model_len - tokens
    # Not clamped: whoever names a length, with ignore_eos for instance, counts on it.
    if room < 1 or (asked is not None and asked > room):
        raise too_long(tokens, served.max_model_len, asked, field)
    if asked is not None:
        return asked
    return room if default is None else min(default, room)


def _require_ids(ids: Sequence[int], vocab_size: int, field: str) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        bad = next(i for i in ids if not 0 <= i < vocab_size)
        raise BadRequest(
            f"'{field}' must hold token ids from 0 to {vocab_size - 1}, not {show(bad)}.", field
        )
