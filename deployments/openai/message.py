"""Messages: one turn of a conversation, in the forms that clients spell it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationInfo, model_validator

from deployments.openai.wire import Wire
from deployments.validation import kind_of

_UNBUILT_ROLES = frozenset({"tool", "function"})
_ROLES = frozenset({"system", "developer", "user", "assistant"})


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
    if isinstance(value, str) and value in _UNBUILT_ROLES:
        raise ValueError(f"{value!r} is not supported yet")
    if not isinstance(value, str) or value not in _ROLES:
        raise ValueError(f"must be one of {', '.join(sorted(_ROLES))}")
    # OpenAI's newer name for the same thing; templates know the older one.
    return "system" if value == "developer" else value


class Message(Wire):
    """One turn of a conversation."""

    model_config = ConfigDict(json_schema_extra={"required": ["role", "content"]})

    role: Annotated[
        str,
        PlainValidator(
            _role, json_schema_input_type=Literal["system", "developer", "user", "assistant"]
        ),
    ]
    content: Annotated[
        str,
        PlainValidator(
            _content,
            json_schema_input_type=str | Annotated[list[TextPart], Field(min_length=1)],
        ),
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
