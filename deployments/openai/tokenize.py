"""POST /tokenize and /detokenize: from text to tokens and back, as vLLM has them."""

from collections.abc import Sequence
from random import Random
from typing import Any, Protocol

from pydantic import ConfigDict, Field, model_validator

from deployments.openai.body import read_object
from deployments.openai.chat import ChatTokenizer, tokens_of
from deployments.openai.length import require_possible
from deployments.openai.message import Message
from deployments.openai.models import validated
from deployments.openai.served import Served
from deployments.openai.tools import MAX_TOOLS, Tool, ToolChoiceField, ToolUse
from deployments.openai.unbuilt import CHAT, refuse_unbuilt
from deployments.openai.wire import Wire

# Those of a chat's fields that would change its prompt.
_UNBUILT = {
    name: CHAT[name]
    for name in (
        "continue_final_message",
        "chat_template",
        "chat_template_kwargs",
        "documents",
        "functions",
        "mm_processor_kwargs",
        "reasoning_effort",
        "truncate_prompt_tokens",
    )
}


class TokenizeRequest(Wire):
    """The body of POST /tokenize: either a text or the messages of a chat."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["prompt"]}, {"required": ["messages"]}]}
    )

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)
    tools: list[Tool] = Field(default_factory=list, max_length=MAX_TOOLS)
    tool_choice: ToolChoiceField | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> "TokenizeRequest":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("Give either 'prompt' or 'messages'")
        return self


class DetokenizeRequest(Wire):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: list[int]


class Tokenizer(ChatTokenizer, Protocol):
    """What is used of a transformers tokenizer."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]: ...


def tokenize(body: bytes, tokenizer: Tokenizer, served: Served) -> dict[str, Any]:
    """Return the answer of POST /tokenize.

    Args:
        body: as it came.
        tokenizer: of the served model.
        served: the model.

    Raises:
        BadRequest: 400; also for a text so long that no tokens could make it fit.
        NotFound: another model, 404.
    """
    fields = read_object(body)
    served.require_name(fields)
    refuse_unbuilt(fields, _UNBUILT)
    request = validated(TokenizeRequest, fields)
    special = request.add_special_tokens
    if request.messages is not None:
        # No call is made, so the ids of calls may be any.
        tools = ToolUse.of(request.tools, request.tool_choice, True, served.dialect, Random(0))
        tokens = tokens_of(
            request.messages,
            tokenizer,
            served,
            tools,
            add_generation_prompt=request.add_generation_prompt,
            # A template writes its special tokens itself.
            add_special_tokens=bool(special),
        )
    else:
        text = request.prompt or ""
        require_possible(text, served, "prompt")
        tokens = tokenizer.encode(text, add_special_tokens=special is not False)
    answer = {"tokens": tokens, "count": len(tokens), "max_model_len": served.max_model_len}
    if request.return_token_strs:
        answer["token_strs"] = tokenizer.convert_ids_to_tokens(tokens)
    return answer


def detokenize(body: bytes, tokenizer: Tokenizer, served: Served) -> dict[str, Any]:
    """Return the answer of POST /detokenize; special tokens show.

    Arguments and errors are those of ``tokenize``.
    """
    fields = read_object(body)
    served.require_name(fields)
    request = validated(DetokenizeRequest, fields)
    served.require_ids(request.tokens, "tokens")
    return {"prompt": tokenizer.decode(request.tokens, skip_special_tokens=False)}
