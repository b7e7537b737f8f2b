"""The request bodies that are understood, field by field.

A null is the same as an absent field, and fields that are not here are ignored; those
that would change the answer if they were built are refused before (``unbuilt``).
Numbers are what JSON says they are: ``true`` is no integer and ``"1"`` no number.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from deployments.openai import forms
from deployments.openai.errors import invalid
from deployments.openai.forms import MAX_LOGPROBS, Prompt
from deployments.openai.message import Message
from deployments.openai.tools import MAX_TOOLS, Tool, ToolChoiceField
from deployments.openai.wire import Wire
from engine.request import SamplingParams

SEED_BITS = 63
MAX_MS = 2**31 - 1
MAX_SALT = 256
"""Characters."""
MAX_COUNT = 2**31 - 1
"""Of tokens and choices: beyond, a sum may have more digits than Python spells."""


class StreamOptions(Wire):
    """What a stream carries beside the text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationRequest(Wire):
    """The fields that both endpoints share."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: int = Field(default=1, ge=1, le=MAX_COUNT)
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    min_tokens: int = Field(default=0, ge=0, le=MAX_COUNT)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1, le=MAX_COUNT)
    min_p: float = Field(default=0.0, ge=0, le=1)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, ge=0.001, le=1000)
    logit_bias: Annotated[
        tuple[tuple[int, float], ...],
        PlainValidator(forms.biases, json_schema_input_type=forms.BiasInput),
    ] = ()
    seed: int | None = Field(default=None, ge=-(2**SEED_BITS), le=2**SEED_BITS - 1)
    stop: Annotated[
        tuple[str, ...], PlainValidator(forms.stops, json_schema_input_type=forms.StopInput)
    ] = ()
    stop_token_ids: Annotated[list[int], AfterValidator(forms.stop_ids)] = Field(
        default_factory=list
    )
    ignore_eos: bool = False
    priority: int | None = None
    service_tier: str | None = None
    cache_salt: str | None = Field(default=None, min_length=1, max_length=MAX_SALT)
    timeout_ms: int | None = Field(default=None, ge=1, le=MAX_MS)
    first_token_timeout_ms: int | None = Field(default=None, ge=1, le=MAX_MS)

    @field_validator("stream_options")
    @classmethod
    def _usage_needs_a_stream(cls, options: StreamOptions, info: ValidationInfo) -> StreamOptions:
        # An answer that is not streamed carries the usage anyway: who asks is mistaken.
        asks = options.include_usage or options.continuous_usage_stats
        if asks and not info.data.get("stream", True):
            raise ValueError("is only allowed with 'stream': true")
        return options

    @property
    def asked_tokens(self) -> int | None:
        """Tokens to generate, if the client said; the newer name wins."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    @property
    def asked_by(self) -> str:
        """The name of the field that says how many tokens to generate."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def told_logprobs(self) -> int | None:
        """Likeliest tokens to tell with each token, None to tell no probabilities."""
        return None

    @property
    def echoes(self) -> bool:
        """Whether the prompt stands before the answer."""
        return False

    def sampling(self, max_tokens: int, grammar: str | None) -> SamplingParams:
        """Return the engine's parameters, as they are without a seed.

        Args:
            max_tokens: tokens to generate, defaults applied, from 1.
            grammar: what the answer must match, None if anything.
        """
        told = self.told_logprobs
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            stop=self.stop,
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
            logit_bias=self.logit_bias,
            logprobs=told,
            prompt_logprobs=told if self.echoes else None,
            grammar=grammar,
        )


class ChatRequest(GenerationRequest):
    """The body of POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    tools: list[Tool] = Field(default_factory=list, max_length=MAX_TOOLS)
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool = True
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MAX_LOGPROBS)

    @field_validator("top_logprobs")
    @classmethod
    def _top_needs_logprobs(cls, top: int, info: ValidationInfo) -> int:
        if top and not info.data.get("logprobs", True):
            raise ValueError("is only allowed with 'logprobs': true")
        return top

    @property
    def told_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None


class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions."""

    # 0 with ``echo`` asks for the prompt's own log-probabilities.
    max_tokens: int | None = Field(default=None, ge=0, le=MAX_COUNT)
    max_completion_tokens: int | None = Field(default=None, ge=0, le=MAX_COUNT)
    prompt: Annotated[
        tuple[Prompt, ...],
        PlainValidator(forms.prompts, json_schema_input_type=forms.PromptInput),
    ]
    best_of: int | None = None
    echo: bool = False
    logprobs: Annotated[
        int | None, PlainValidator(forms.logprobs, json_schema_input_type=forms.LogprobsInput)
    ] = None

    @field_validator("best_of")
    @classmethod
    def _all_are_answers(cls, best_of: int | None, info: ValidationInfo) -> int | None:
        if best_of is not None and best_of != info.data.get("n", best_of):
            raise ValueError("is not supported yet unless it is the same as 'n'")
        return best_of

    @property
    def told_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def echoes(self) -> bool:
        return self.echo


RequestT = TypeVar("RequestT", bound=Wire)


def validated(kind: type[RequestT], body: Mapping[str, Any]) -> RequestT:
    """Check a body against its model.

    Raises:
        BadRequest: names the first field that is wrong.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise invalid(error) from None
