"""What pydantic found wrong, as one sentence that names field, value and limit.

Requests and settings are refused in the same words, so the HTTP API and the command
line both use this.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

_SHOWN = 40  # characters of a value that a sentence repeats

# pydantic's error type -> what is accepted, in words; the argument is the error's context.
_LIMITS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "int_type": lambda _: "an integer",
    "float_type": lambda _: "a number",
    "finite_number": lambda _: "a finite number",
    "bool_type": lambda _: "true or false",
    "string_type": lambda _: "a string",
    "list_type": lambda _: "a list",
    "tuple_type": lambda _: "a list",
    "dict_type": lambda _: "an object",
    "model_type": lambda _: "an object",
    "greater_than_equal": lambda ctx: f"at least {_number(ctx['ge'])}",
    "greater_than": lambda ctx: f"greater than {_number(ctx['gt'])}",
    "less_than_equal": lambda ctx: f"at most {_number(ctx['le'])}",
    "less_than": lambda ctx: f"less than {_number(ctx['lt'])}",
    "literal_error": lambda ctx: str(ctx["expected"]),
    "enum": lambda ctx: str(ctx["expected"]),
    "too_short": lambda ctx: f"a list of at least {ctx['min_length']}",
    "too_long": lambda ctx: f"a list of at most {ctx['max_length']}",
    "string_too_short": lambda ctx: f"a string of at least {ctx['min_length']} characters",
}


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with some input.

    Attributes:
        field: dotted path, e.g. ``"messages.0.content"``; empty for the whole input.
        message: a sentence without a full stop at its end.
    """

    field: str
    message: str


def explain(error: ValidationError, private: Container[str] = ()) -> Problem:
    """Describe the first problem of a validation error.

    Args:
        error: what pydantic raised.
        private: top-level fields whose values are never repeated.
    """
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    kind, context, value = first["type"], first.get("ctx", {}), first["input"]
    if kind == "missing":
        message = f"'{field}' is required"
    elif kind == "extra_forbidden":
        message = f"'{field}' is not a known setting"
    elif kind == "value_error":
        message = f"'{field}' {context['error']}" if field else str(context["error"])
    elif kind in _LIMITS:
        hidden = bool(first["loc"]) and first["loc"][0] in private
        shown = kind_of(value) if hidden else show(value)
        message = f"'{field}' must be {_LIMITS[kind](context)}, not {shown}"
    else:
        message = f"'{field}': {first['msg']}"
    return Problem(field, message)


def show(value: object) -> str:
    """Spell a value as a client wrote it in JSON: short, on one line, no containers."""
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = str(value)
        return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return kind_of(value)


def kind_of(value: object) -> str:
    """Say what kind of JSON value this is, without its content."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, Mapping):
        return "an object"
    return f"a list of {len(value)}" if isinstance(value, list | tuple) else "something else"
