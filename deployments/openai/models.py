"""The request bodies that are understood, field by field.

A null is the same as an absent field, and fields that are not here are ignored; those
that would change the answer if they were built are refused before (``unbuilt``).
Numbers are what JSON says they are: ``true`` is no integer and ``"1"`` no number.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from deployments.openai.body import without_nulls
from deployments.openai.errors import invalid
from deployments.validation import kind_of
from engine.request import SamplingParams

MAX_STOPS = 4
_SEED_BITS = 63
_UNBUILT_ROLES = frozenset({"tool", "function"})
_ROLES = frozenset({"system", "developer", "user", "assistant"})

Prompt = str | tuple[int, ...]


class _Wire(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        return without_nulls(value) if isinstance(value, Mapping) else value


def _stop(value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"must be a string or a list of strings, not {_shape(value)}")
    if len(texts) > MAX_STOPS:
        raise ValueError(f"must have at most {MAX_STOPS} strings, not {len(texts)}")
    if not all(texts):
        raise ValueError("must not hold an empty string")
    return tuple(texts)


def _prompts(value: object) -> tuple[Prompt, ...]:
    """Bring the four forms to one: a tuple with a text or a tuple of ids for each prompt."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise ValueError(f"must be a string or a list, not {kind_of(value)}")
    prompts: tuple[Prompt, ...]
    if all(_is_id(item) for item in value):
        prompts = (tuple(value),)
    elif all(isinstance(item, str) for item in value):
        prompts = tuple(value)
    elif all(isinstance(item, list) and all(_is_id(i) for i in item) for item in value):
        prompts = tuple(tuple(item) for item in value)
    else:
        raise ValueError(
            "must be a string, a list of strings, a list of token ids, or a list of such lists"
        )
    if not all(prompts):
        raise ValueError("must not be empty")
    return prompts


def _content(value: object, info: ValidationInfo) -> str:
    """Bring a message's content to one text; only an assistant's turn may have none."""
    assistant = info.data.get("role") == "assistant"
    if value is None and assistant:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError(f"must be a string or a list of text parts, not {kind_of(value)}")
    if not value and not assistant:
        raise ValueError("must have at least one part")
    return "\n".join(_part(index, part) for index, part in enumerate(value))


def _part(index: int, part: object) -> str:
    if not isinstance(part, Mapping):
        raise ValueError(f"must be a list of text parts; part {index} is {kind_of(part)}")
    if part.get("type") != "text":
        raise ValueError(f"must have text parts only; part {index} is not one")
    text = part.get("text")
    if not isinstance(text, str):
        raise ValueError(f"must have a string as the text of part {index}, not {kind_of(text)}")
    return text


def _role(value: object) -> str:
    if isinstance(value, str) and value in _UNBUILT_ROLES:
        raise ValueError(f"{value!r} is not supported yet")
    if not isinstance(value, str) or value not in _ROLES:
        raise ValueError(f"must be one of {', '.join(sorted(_ROLES))}")
    # OpenAI's newer name for the same thing; templates know the older one.
    return "system" if value == "developer" else value


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shape(value: object) -> str:
    return "a list of other things" if isinstance(value, list) else kind_of(value)


class Message(_Wire):
    """One turn of a conversation."""

    role: Annotated[
        str,
        PlainValidator(
            _role, json_schema_input_type=Literal["system", "developer", "user", "assistant"]
        ),
    ]
    content: Annotated[
        str,
        PlainValidator(_content, json_schema_input_type=str | list[dict[str, Any]] | None),
    ] = Field(default=None, validate_default=True)
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_calls(cls, value: Any) -> Any:
        for field in ("tool_calls", "function_call", "audio"):
            if isinstance(value, Mapping) and value.get(field):
                raise ValueError(f"carries '{field}', which is not supported yet")
        return value

    def for_template(self) -> dict[str, str]:
        """Return the turn as chat templates expect it."""
        turn = {"role": self.role, "content": self.content}
        return turn if self.name is None else {**turn, "name": self.name}


class StreamOptions(_Wire):
    """What a stream carries beside the text."""

    include_usage: bool = False


class GenerationRequest(_Wire):
    """The fields that both endpoints share."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1)
    min_p: float = Field(default=0.0, ge=0, le=1)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, ge=0.001, le=1000)
    seed: int | None = Field(default=None, ge=-(2**_SEED_BITS), le=2**_SEED_BITS - 1)
    stop: Annotated[
        tuple[str, ...], PlainValidator(_stop, json_schema_input_type=str | list[str])
    ] = ()
    stop_token_ids: list[int] = Field(default_factory=list)
    ignore_eos: bool = False
    priority: int | None = None
    service_tier: Literal["auto", "default"] | None = None

    @field_validator("stream_options")
    @classmethod
    def _usage_needs_a_stream(cls, options: StreamOptions, info: ValidationInfo) -> StreamOptions:
        # An answer that is not streamed carries the usage anyway: who asks is mistaken.
        if options.include_usage and not info.data.get("stream", True):
            raise ValueError("is only allowed with 'stream': true")
        return options

    @property
    def asked_tokens(self) -> int | None:
        """Tokens to generate, if the client said; the newer name wins."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    def sampling(self, max_tokens: int, seed: int) -> SamplingParams:
        """Return the engine's parameters.

        Args:
            max_tokens: tokens to generate, defaults applied.
            seed: used when the client gave none.
        """
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            seed=seed if self.seed is None else self.seed,
            stop=self.stop,
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
        )


class ChatRequest(GenerationRequest):
    """The body of POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)


class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions."""

    prompt: Annotated[
        tuple[Prompt, ...],
        PlainValidator(
            _prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]
        ),
    ]


RequestT = TypeVar("RequestT", bound=GenerationRequest)


def validated(kind: type[RequestT], body: Mapping[str, Any]) -> RequestT:
    """Check a body against its model.

    Raises:
        BadRequest: names the first field that is wrong.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise invalid(error) from None
