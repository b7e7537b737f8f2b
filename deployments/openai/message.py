"""Messages: one turn of a conversation, in the forms that clients spell it."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    field_validator,
    model_validator,
)

from deployments.openai.wire import Wire
from deployments.validation import kind_of

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class TextPart(BaseModel):
    """A part of a content, for the OpenAPI document."""

    type: Literal["text"]
    text: str


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
    if value == "function":
        raise ValueError(f"{value!r} is not supported yet")
    if not isinstance(value, str) or value not in _ROLES:
        raise ValueError(f"must be one of {', '.join(sorted(_ROLES))}")
    # OpenAI's newer name for the same thing; templates know the older one.
    return "system" if value == "developer" else value


def _arguments(value: object) -> dict[str, Any] | str:
    """Read the arguments of a call: an object, which the API carries as text.

    A call that was cut short carries what there was of it, which stays a text.
    """
    if not isinstance(value, str):
        raise ValueError(f"must be a string, not {kind_of(value)}")
    try:
        arguments = json.loads(value or "{}")
    except (ValueError, RecursionError):
        return value
    if not isinstance(arguments, dict):
        return value
    if "\\u" in value and _has_half_a_pair(arguments):
        raise ValueError("must not have half a surrogate pair")
    return arguments


def _has_half_a_pair(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except RecursionError:
        return False  # the template does not get to the end either
    return False


class MadeFunction(Wire):
    """What was called."""

    name: str
    arguments: Annotated[
        dict[str, Any] | str, PlainValidator(_arguments, json_schema_input_type=str)
    ]


class MadeCall(Wire):
    """A call of a tool that an assistant made."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: MadeFunction

    def for_template(self) -> dict[str, Any]:
        """Return the call as chat templates expect it: its arguments as an object.

        Arguments that are none, having been cut short, are the text that they were.
        """
        function = {"name": self.function.name, "arguments": self.function.arguments}
        call = {"type": "function", "function": function}
        return call if self.id is None else {**call, "id": self.id}


class Message(Wire):
    """One turn of a conversation."""

    # Only an assistant's turn may have no content.
    model_config = ConfigDict(
        json_schema_extra={
            "required": ["role"],
            "anyOf": [
                {"properties": {"role": {"const": "assistant"}}},
                {
                    "properties": {"content": {"type": ["string", "array"], "minItems": 1}},
                    "required": ["content"],
                },
            ],
        }
    )

    role: Annotated[
        str,
        PlainValidator(
            _role,
            json_schema_input_type=Literal["system", "developer", "user", "assistant", "tool"],
        ),
    ]
    content: Annotated[
        str,
        PlainValidator(
            _content,
            json_schema_input_type=str | list[TextPart] | None,
        ),
    ] = Field(default=None, validate_default=True)
    name: str | None = None
    tool_calls: list[MadeCall] = Field(default_factory=list)
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_calls(cls, value: Any) -> Any:
        for field in ("function_call", "audio"):
            if isinstance(value, Mapping) and value.get(field):
                raise ValueError(f"carries '{field}', which is not supported yet")
        return value

    @field_validator("tool_calls")
    @classmethod
    def _an_assistant_calls(cls, calls: list[MadeCall], info: ValidationInfo) -> list[MadeCall]:
        if calls and info.data.get("role") not in ("assistant", None):
            raise ValueError("is only allowed in an assistant's turn")
        return calls

    @property
    def of_tools(self) -> bool:
        """Whether the turn calls tools, or brings the answer of one."""
        return self.role == "tool" or bool(self.tool_calls)

    def for_template(self) -> dict[str, Any]:
        """Return the turn as chat templates expect it."""
        turn: dict[str, Any] = {"role": self.role, "content": self.content}
        for key in ("name", "tool_call_id"):
            if getattr(self, key) is not None:
                turn[key] = getattr(self, key)
        if self.tool_calls:
            turn["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return turn
