"""Tools: what a model may call, and what its calls have to look like."""

import json
import random
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from llguidance import LLMatcher
from pydantic import Field, PlainValidator

from deployments.openai.errors import BadRequest
from deployments.openai.schema import require_tame
from deployments.openai.structured import (
    JSON_OPTIONS,
    checked,
    json_text,
    require_length,
    schema_grammar,
)
from deployments.openai.tool_formats import Dialect
from deployments.openai.tool_parser import CallParser
from deployments.openai.wire import Wire
from deployments.validation import kind_of, show

MAX_TOOLS: Final = 128
_ALPHABET: Final = string.ascii_letters + string.digits


class Function(Wire):
    """A function, as its caller describes it."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class Tool(Wire):
    """A tool; there is one type of them."""

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """Return the tool as chat templates expect it."""
        function = self.function
        told = {"name": function.name, "description": function.description or ""}
        parameters = function.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": {**told, "parameters": parameters}}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether tools are called: ``none``, ``auto`` or ``required``, and maybe only one of them."""

    mode: str
    name: str | None = None


def _choice(value: object) -> ToolChoice:
    if isinstance(value, ToolChoice):
        return value
    if isinstance(value, str):
        if value not in ("none", "auto", "required"):
            raise ValueError(f"must be 'none', 'auto', 'required' or a function, not {show(value)}")
        return ToolChoice(value)
    if not isinstance(value, Mapping) or value.get("type") != "function":
        kind = show(value.get("type")) if isinstance(value, Mapping) else kind_of(value)
        raise ValueError(f"must be a string or an object of type 'function', not {kind}")
    function = value.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise ValueError("must have a string as its 'function.name'")
    return ToolChoice("required", name)


class _Named(Wire):
    name: str


class _NamedTool(Wire):
    type: Literal["function"]
    function: _Named


ToolChoiceField = Annotated[
    ToolChoice,
    PlainValidator(
        _choice, json_schema_input_type=Literal["none", "auto", "required"] | _NamedTool
    ),
]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request that may be called.

    Attributes:
        dialect: how the model calls them.
        tools: those of the request.
        choice: whether they are called.
        several: more than one call may be made.
        salt: makes the ids of calls differ from those of other requests.
    """

    dialect: Dialect
    tools: tuple[Tool, ...]
    choice: ToolChoice
    several: bool
    salt: int

    @classmethod
    def of(
        cls,
        tools: list[Tool],
        choice: ToolChoice | None,
        several: bool,
        dialect: Dialect | None,
        rng: random.Random,
    ) -> "ToolUse | None":
        """Return what a request asks for, None if nothing is to be called.

        Args:
            tools: of the request.
            choice: of the request; without one, the model chooses if there are tools.
            several: it allows more than one call.
            dialect: how the model calls tools; None if it does not.
            rng: for the ids of calls.

        Raises:
            BadRequest: it asks for what is not there, or the model knows no tools.
        """
        if choice is None:
            choice = ToolChoice("auto" if tools else "none")
        if choice.mode != "none" and not tools:
            raise BadRequest("'tool_choice' needs 'tools' to choose from.", "tool_choice")
        if not tools:
            return None
        if dialect is None:
            raise BadRequest(
                "'tools' cannot be used: the chat template of this model knows no tools.", "tools"
            )
        names = [tool.function.name for tool in tools]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BadRequest(f"'tools' has two functions named {show(twice)}.", "tools")
        if choice.name is not None and choice.name not in names:
            raise BadRequest(
                f"'tool_choice' names {show(choice.name)}, which is not in 'tools'.", "tool_choice"
            )
        if choice.mode == "none":
            return None
        return cls(dialect, tuple(tools), choice, several, rng.getrandbits(64))

    def grammar(self) -> str:
        """Return the grammar of the answers.

        Raises:
            BadRequest: the schema of some function's arguments cannot be enforced.
        """
        schemas = {
            f"tools.{index}.function.parameters": (tool.function.name, tool.function.parameters)
            for index, tool in enumerate(self.tools)
            if self.choice.name in (None, tool.function.name)
        }
        # Together, before time is spent on any.
        texts = (json_text(schema, field) for field, (_, schema) in schemas.items())
        require_length(sum(map(len, texts)), "tools")
        singles = {field: _arguments(schema, field) for field, (_, schema) in schemas.items()}
        several = self.several and self.choice.name is None
        forced = self.choice.mode == "required"
        names = {name: _embedded(singles[field]) for field, (name, _) in schemas.items()}
        lark = self.dialect.grammar(names, forced, several)
        try:
            return checked(LLMatcher.grammar_from_lark(lark), "tools")
        except BadRequest:
            for field, schema in singles.items():
                checked(schema_grammar(schema, field), field)
            raise

    def parser(self, choice: int) -> CallParser:
        """Return a parser for the answer with this index."""

        def new_id(call: int) -> str:
            rng = random.Random(f"{self.salt}/{choice}/{call}")
            chars = self.dialect.form.id_chars
            name = "".join(rng.choices(_ALPHABET, k=chars))
            return name if chars < 10 else f"call_{name}"

        names = [tool.function.name for tool in self.tools]
        return CallParser(self.dialect.spelling(names), new_id)

    def for_template(self) -> list[dict[str, Any]]:
        """Return the tools as chat templates expect them."""
        return [tool.for_template() for tool in self.tools]


def _arguments(schema: dict[str, Any] | None, field: str) -> dict[str, Any]:
    """The JSON schema of a function's arguments; whether it compiles is not looked at."""
    # OpenAI: without parameters, a function takes none.
    if schema is None:
        schema = {"properties": {}, "additionalProperties": False}
    if schema.get("type", "object") != "object":
        raise BadRequest(
            f"'{field}' must be a schema of type 'object', not {show(schema['type'])}.", field
        )
    require_tame(schema, field)
    return {"type": "object", **schema}


def _embedded(schema: dict[str, Any]) -> str:
    """A schema for a block in a Lark grammar."""
    return json.dumps({**schema, "x-guidance": JSON_OPTIONS})
