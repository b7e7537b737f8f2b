"""POST /v1/chat/completions: messages in, one assistant's turn out."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from jinja2 import TemplateError

from deployments.openai.body import read_object
from deployments.openai.call import Call, Choice, Job, Shape, new_id
from deployments.openai.errors import BadRequest
from deployments.openai.jobs import jobs_of, require_choices
from deployments.openai.length import require_possible
from deployments.openai.logprobs import ChatLedger
from deployments.openai.message import Message
from deployments.openai.models import ChatRequest, validated
from deployments.openai.served import Served
from deployments.openai.structured import form_field, grammar_of
from deployments.openai.terms import Terms
from deployments.openai.tokens import TokenNames
from deployments.openai.tool_parser import CallParser, joined
from deployments.openai.tools import ToolUse
from deployments.openai.unbuilt import CHAT, refuse_unbuilt


class ChatTokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    chat_template: Any

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        **variables: Any,
    ) -> Any: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class ChatCall(Call):
    """A call whose answer is an assistant's turn.

    Attributes:
        tools: those that may be called.
    """

    tools: ToolUse | None = None

    object: ClassVar[str] = "chat.completion"
    shape: ClassVar[Shape] = Shape(
        object="chat.completion.chunk",
        opening='"delta":{"role":"assistant","content":""}',
        text='"delta":{"content":',
        after="}",
        closing='"delta":{}',
    )

    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if calls := joined(choice.calls):
            message |= {"content": choice.text or None, "tool_calls": calls}
        return {
            "index": index,
            "message": message,
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish.value,
        }

    def ledger(self, names: TokenNames, job: Job) -> ChatLedger:
        return ChatLedger(names)

    def parser(self, index: int) -> CallParser | None:
        return None if self.tools is None else self.tools.parser(index)


def prepare(
    body: bytes,
    headers: Mapping[str, str],
    tokenizer: ChatTokenizer,
    served: Served,
    rng: random.Random,
    now: float,
) -> ChatCall:
    """Understand a request, or refuse it; everything that can be refused is, here.

    Tokenising takes milliseconds for a long prompt: call this off the event loop.

    Args:
        body: as it came.
        headers: looked up in lower case.
        tokenizer: of the served model.
        served: the model and its bounds.
        rng: for the id and for seeds that the client did not give.
        now: Unix time in seconds.

    Raises:
        BadRequest: 400.
        NotFound: another model, 404.
    """
    fields = read_object(body)
    served.require_name(fields)
    refuse_unbuilt(fields, CHAT)
    request = validated(ChatRequest, served.filled(fields))
    terms = Terms.of(request, headers, served)
    grammar, form = grammar_of(fields), form_field(fields)
    choice, several = request.tool_choice, request.parallel_tool_calls
    tools = ToolUse.of(request.tools, choice, several, served.dialect, rng)
    if tools is not None:
        if grammar is not None:
            raise BadRequest("'tools' cannot be combined with a form for the answer.", "tools")
        grammar, form = tools.grammar(), "tools"
    require_choices(1, request, served)
    prompt = tuple(tokens_of(request.messages, tokenizer, served, tools))
    return ChatCall(
        id=new_id("chatcmpl", rng),
        created=int(now),
        model=served.name,
        terms=terms,
        jobs=tuple(jobs_of(request, [prompt], served, None, "messages", rng, grammar=grammar)),
        each=request.n,
        form=form,
        tools=tools,
    )


def tokens_of(
    messages: Sequence[Message],
    tokenizer: ChatTokenizer,
    served: Served,
    tools: ToolUse | None = None,
    *,
    add_generation_prompt: bool = True,
    add_special_tokens: bool = False,
) -> list[int]:
    """Return the tokens of a conversation, as the model's chat template spells it.

    Args:
        messages: at least one.
        tokenizer: of the served model.
        served: bounds the length, and says whether the template knows tools.
        tools: those that the model is told of.
        add_generation_prompt: end with the beginning of an assistant's turn.
        add_special_tokens: add the tokenizer's own, though the template writes all that the
            model was trained with: a second beginning-of-sequence token, mostly.

    Raises:
        BadRequest: there is no template, it refuses the messages or knows no tools, or they
            are too long.
    """
    if not tokenizer.chat_template:
        raise BadRequest("The model has no chat template; use /v1/completions.", "messages")
    if served.dialect is None:
        _require_no_tools(messages)
    conversation = [message.for_template() for message in messages]
    known = {} if tools is None else {"tools": tools.for_template()}
    try:
        text = tokenizer.apply_chat_template(
            conversation,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **known,
        )
    except TemplateError as error:
        # Templates refuse what the model was not trained on, e.g. two user turns in a row.
        raise BadRequest(
            f"The model's chat template refuses the messages: {error}.", "messages"
        ) from None
    except RecursionError:
        raise BadRequest(
            "The messages or tools are nested too deeply for the model's chat template.",
            "messages",
        ) from None
    except Exception as error:
        # Somebody else's program.  What it says of its failure may repeat the messages.
        raise BadRequest(
            f"The model's chat template fails on the messages: {type(error).__name__}.", "messages"
        ) from None
    require_possible(text, served, "messages")
    return tokenizer.encode(text, add_special_tokens=add_special_tokens)


def _require_no_tools(messages: Sequence[Message]) -> None:
    for index, message in enumerate(messages):
        if message.of_tools:
            raise BadRequest(
                f"'messages.{index}' is about tools, which the chat template of this model does "
                "not know.",
                f"messages.{index}",
            )
