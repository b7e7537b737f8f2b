"""The shapes of answers, for the OpenAPI document; they are not made from these classes."""

from typing import Any, Literal

from pydantic import BaseModel, Field


class PromptDetails(BaseModel):
    """What of the prompt did not have to be computed."""

    cached_tokens: int


class UsageObject(BaseModel):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class TokenEntry(BaseModel):
    """A token and how likely it was."""

    token: str
    logprob: float
    bytes: list[int]


class ContentEntry(TokenEntry):
    """A generated token, and the likeliest in its place."""

    top_logprobs: list[TokenEntry]


class ChatLogprobs(BaseModel):
    """An entry for each generated token."""

    content: list[ContentEntry]
    refusal: None


class CompletionLogprobs(BaseModel):
    """Lists side by side, with an entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class ChatMessage(BaseModel):
    """The assistant's turn."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class CompletionChoice(BaseModel):
    """One answer."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]


class _Answer(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str | None
    usage: UsageObject
    service_tier: str | None = None


class ChatCompletion(_Answer):
    """The answer of POST /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class Completion(_Answer):
    """The answer of POST /v1/completions."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ModelCard(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    """The answer of GET /v1/models."""

    object: Literal["list"]
    data: list[ModelCard]


class Tokens(BaseModel):
    """The answer of POST /tokenize."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] = Field(default_factory=list)


class Text(BaseModel):
    """The answer of POST /detokenize."""

    prompt: str


class Version(BaseModel):
    """The answer of GET /version."""

    version: str


class ErrorFields(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """The envelope of every answer that is not a success."""

    error: ErrorFields
