"""Structured output: from the fields that ask for one to the grammar that enforces it.

OpenAI's ``response_format``, vLLM's ``structured_outputs`` and its older ``guided_*``.  What
is asked for is enforced in full or refused: no keyword of a schema is passed over.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from llguidance import LLMatcher

from deployments.openai.errors import BadRequest, unsupported
from deployments.openai.schema import require_tame
from deployments.validation import kind_of, show
from engine.guidance import MAX_GRAMMAR, check_grammar
from engine.request import InvalidParam

# At most one blank, or one line's end with its indent, wherever JSON allows blanks: a model
# that sees no reason to go on would otherwise fill the rest of its answer with them.  No
# "\uXXXX", in which a property's name would get past what is asked of the property.
JSON_OPTIONS: Any = {
    "whitespace_flexible": True,
    "whitespace_pattern": r"( |\n[ \t]{0,32})",
    "lenient": False,
    "coerce_one_of": False,
    "json_allowed_escapes": 'nrbtf\\"',
}
_MAX_CHOICES = 10_000
# Blocks of llguidance's own inside a Lark grammar: they would go past the checks on schemas.
_EMBEDDED = re.compile(r"%(json|llguidance|lark)\b")
# Intersections and complements of tokens; each may double the work.
_MAX_OPERATORS = 8
_REASON = 300  # characters of llguidance's reason that a client is told

Fields: TypeAlias = Mapping[str, Any]
_Maker: TypeAlias = Callable[[object, str], str]


def grammar_of(fields: Fields) -> str | None:
    """Return the grammar that a request asks its answer to match, None if it asks for none.

    Takes milliseconds for a large schema: call it off the event loop.

    Args:
        fields: the request's body, without nulls.

    Returns:
        A grammar as ``engine.guidance`` takes it.

    Raises:
        BadRequest: what is asked for is malformed, cannot be enforced, or is asked for twice;
            names the field.
    """
    asked = _asked(fields)
    if not asked:
        return None
    if len(asked) > 1:
        (first, _, _), (second, _, _), *_ = asked
        raise BadRequest(f"'{second}' cannot be combined with '{first}': use one of them.", second)
    field, make, value = asked[0]
    return checked(make(value, field), field)


def form_field(fields: Fields) -> str | None:
    """Return the field in which a request asks for a form, None if it asks for none."""
    asked = _asked(fields)
    return asked[0][0] if asked else None


def schema_grammar(schema: object, field: str) -> str:
    """Return the grammar of a JSON schema, given as an object or as JSON.

    Args:
        schema: as the client sent it.
        field: where it sent it, for errors.

    Raises:
        BadRequest: it is no schema, or one that costs too much; what llguidance thinks of it
            is left to ``checked``.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            raise BadRequest(f"'{field}' is not valid JSON.", field) from None
    if not isinstance(schema, Mapping):
        raise BadRequest(f"'{field}' must be a JSON schema, not {kind_of(schema)}.", field)
    text = json_text(schema, field)
    require_length(len(text), field)
    require_tame(schema, field)
    try:
        return LLMatcher.grammar_from_json_schema(text, overrides=JSON_OPTIONS)
    except ValueError as error:
        raise _refused(field, str(error)) from None


def json_text(value: object, field: str) -> str:
    """Return what a client sent as JSON.

    Raises:
        BadRequest: it is nested deeper than can be written.
    """
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise BadRequest(f"'{field}' is nested too deeply.", field) from None


def require_length(characters: int, field: str) -> None:
    """Check the length of what a client sent, before time is spent on it.

    Raises:
        BadRequest: it makes a grammar that is too large.
    """
    if characters > MAX_GRAMMAR:
        raise BadRequest(
            f"'{field}' must have at most {MAX_GRAMMAR} characters, not {characters}.", field
        )


def checked(grammar: str, field: str) -> str:
    """Return ``grammar`` if it can be enforced.

    Raises:
        BadRequest: it cannot; says why.
    """
    try:
        check_grammar(grammar)
    except InvalidParam as error:
        raise _refused(field, error.limit.removeprefix("one that can be enforced: ")) from None
    return grammar


_Asked: TypeAlias = list[tuple[str, _Maker, object]]


def _asked(fields: Fields) -> _Asked:
    return [*_response_format(fields), *_structured_outputs(fields), *_guided(fields)]


def _response_format(fields: Fields) -> _Asked:
    name = "response_format"
    given = _object(fields, name)
    kind = None if given is None else given.get("type")
    if given is None or kind == "text":
        return []
    if kind == "json_object":
        return [(name, _json_object, True)]
    if kind != "json_schema":
        raise BadRequest(
            f"'{name}.type' must be 'text', 'json_object' or 'json_schema', not {show(kind)}.",
            f"{name}.type",
        )
    inner = given.get("json_schema")
    if not isinstance(inner, Mapping):
        raise BadRequest(
            f"'{name}.json_schema' must be an object, not {kind_of(inner)}.", f"{name}.json_schema"
        )
    # With or without ``strict``, and whatever its name, the schema is enforced.
    for key, type_, words in (("strict", bool, "true or false"), ("name", str, "a string")):
        if inner.get(key) is not None and not isinstance(inner[key], type_):
            path = f"{name}.json_schema.{key}"
            raise BadRequest(f"'{path}' must be {words}, not {show(inner[key])}.", path)
    return [(f"{name}.json_schema.schema", schema_grammar, inner.get("schema"))]


def _structured_outputs(fields: Fields) -> _Asked:
    name = "structured_outputs"
    given = _object(fields, name)
    if given is None:
        return []
    asked: _Asked = []
    for key, value in given.items():
        path = f"{name}.{key}"
        if value is None or value is False:
            continue
        if key not in _MAKERS:
            raise unsupported(path, f"known are {', '.join(_MAKERS)}")
        asked.append((path, _MAKERS[key], value))
    if not asked:
        raise BadRequest(f"'{name}' must have one of {', '.join(_MAKERS)}.", name)
    return asked


def _guided(fields: Fields) -> _Asked:
    names = {f"guided_{kind}": _MAKERS[kind] for kind in ("json", "regex", "choice", "grammar")}
    return [
        (name, make, fields[name]) for name, make in names.items() if fields.get(name) is not None
    ]


def _object(fields: Fields, name: str) -> Fields | None:
    given = fields.get(name)
    if given is not None and not isinstance(given, Mapping):
        raise BadRequest(f"'{name}' must be an object, not {kind_of(given)}.", name)
    return given


def _json_object(value: object, field: str) -> str:
    if value is not True:
        raise BadRequest(f"'{field}' must be true or false, not {show(value)}.", field)
    return schema_grammar({"type": "object"}, field)


def _regex(value: object, field: str) -> str:
    return LLMatcher.grammar_from_regex(_text(value, field))


def _choice(value: object, field: str) -> str:
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise BadRequest(f"'{field}' must be a list of strings that are not empty.", field)
    if not 1 <= len(value) <= _MAX_CHOICES:
        limit = f"from 1 to {_MAX_CHOICES} strings, not {len(value)}"
        raise BadRequest(f"'{field}' must have {limit}.", field)
    require_length(sum(map(len, value)), field)
    return LLMatcher.grammar_from_regex("|".join(f"({literal(text)})" for text in value))


def _lark(value: object, field: str) -> str:
    text = _text(value, field)
    if found := _EMBEDDED.search(text):
        raise _refused(field, f"'{found[0]}' is not allowed in it")
    if text.count("&") + text.count("~") > _MAX_OPERATORS:
        raise _refused(field, f"it has more than {_MAX_OPERATORS} of '&' and '~'")
    return LLMatcher.grammar_from_lark(text)


def literal(text: str) -> str:
    """Return a regular expression for ``text`` itself."""
    return "".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise BadRequest(f"'{field}' must be a string, not {kind_of(value)}.", field)
    if not value:
        raise BadRequest(f"'{field}' must not be empty.", field)
    require_length(len(value), field)
    return value


def _refused(field: str, reason: str) -> BadRequest:
    if reason.startswith("oneOf"):  # its hint is about an option that clients do not have
        reason = "branches of a 'oneOf' are not seen to exclude each other; use 'anyOf'"
    short = reason if len(reason) <= _REASON else reason[:_REASON] + "…"
    return BadRequest(f"'{field}' cannot be enforced: {short}.", field)


_MAKERS: Mapping[str, _Maker] = {
    "json": schema_grammar,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _lark,
}
