"""What is asked of both libraries: schemas with texts that fit and texts that do not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Case:
    """A schema, or a regular expression.

    Attributes:
        name: for the table.
        schema: JSON schema, None for a regular expression.
        good: answers that fit: values for a schema, else texts.
        bad: answers that do not.
        regex: the expression, if there is no schema.
    """

    name: str
    schema: Mapping[str, Any] | None
    good: Sequence[Any]
    bad: Sequence[Any]
    regex: str = ""


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            "required": ["value", "children"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
_PERSON = _object(
    name={"type": "string", "maxLength": 10},
    address=_object(street={"type": "string", "maxLength": 10}, number={"type": "integer"}),
)
_KINDS = [
    _object(kind={"const": "circle"}, radius={"type": "number"}),
    _object(kind={"const": "square"}, side={"type": "integer"}),
]
_ENUM = [f"value-{i}" for i in range(2_000)]

CASES: Final[Sequence[Case]] = (
    Case(
        "nested objects",
        _PERSON,
        [{"name": "Ada", "address": {"street": "X", "number": 1}}],
        [{"name": "Ada"}, {"name": "Ada", "address": {}}],
    ),
    Case("enum", {"enum": ["red", 5, None, {"a": 1}]}, ["red", 5, None], ["blue", 6]),
    Case("large enum", {"enum": _ENUM}, ["value-1999"], ["value-2000"]),
    Case("const", {"const": {"a": [1, "x"]}}, [{"a": [1, "x"]}], [{"a": [1]}]),
    Case(
        "recursion",
        _TREE,
        [{"value": 1, "children": [{"value": 2, "children": []}]}],
        [{"value": 1, "children": [3]}],
    ),
    Case(
        "pattern", {"type": "string", "pattern": "^[a-c]{2,4}-[0-9]+$"}, ["ab-12"], ["ab12", "a-1"]
    ),
    Case("pattern within", {"type": "string", "pattern": "b+"}, ["abc", "b"], ["ac"]),
    Case(
        "length", {"type": "string", "minLength": 2, "maxLength": 4}, ["ab", "日本"], ["a", "abcde"]
    ),
    Case(
        "integer range", {"type": "integer", "minimum": 7, "maximum": 123}, [7, 99, 123], [6, 124]
    ),
    Case(
        "number range",
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1.5},
        [0.5, 1.5, 1],
        [0, 1.6, -1],
    ),
    Case("multiple", {"type": "integer", "multipleOf": 7}, [0, 7, 49], [1, 50]),
    Case(
        "items",
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        [[True], [True, False, True]],
        [[], [1], [True] * 4],
    ),
    Case(
        "tuple",
        {
            "type": "array",
            "prefixItems": [{"type": "integer"}, {"type": "string"}],
            "items": False,
            "minItems": 2,
        },
        [[1, "a"]],
        [[1], ["a", 1], [1, "a", 2]],
    ),
    Case(
        "other properties",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "additionalProperties": {"type": "boolean"},
        },
        [{"a": 1, "b": True}, {}],
        [{"a": True}, {"b": 1}],
    ),
    Case(
        "optional properties",
        {"type": "object", "properties": {"a": {}, "b": {"type": "null"}}, "required": ["b"]},
        [{"b": None}, {"a": 1, "b": None}],
        [{}, {"a": 1}, {"b": 1}],
    ),
    Case(
        "pattern properties",
        {
            "type": "object",
            "patternProperties": {"^n_": {"type": "integer"}},
            "additionalProperties": False,
        },
        [{"n_a": 1}, {}],
        [{"a": 1}, {"n_a": "x"}],
    ),
    Case(
        "property count",
        {"type": "object", "minProperties": 1, "maxProperties": 2},
        [{"a": 1}],
        [{}],
    ),
    Case("anyOf", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, [1, None], ["x", True]),
    Case(
        "oneOf",
        {"oneOf": _KINDS},
        [{"kind": "square", "side": 1}],
        [{"kind": "square", "radius": 1}],
    ),
    Case(
        "allOf",
        {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
        [3, 5],
        [2, 6],
    ),
    Case(
        "date-time",
        {"type": "string", "format": "date-time"},
        ["2024-02-03T04:05:06Z"],
        ["2024-02-03"],
    ),
    Case("email", {"type": "string", "format": "email"}, ["a@b.org"], ["a.b.org"]),
    Case(
        "uuid",
        {"type": "string", "format": "uuid"},
        ["12345678-1234-4234-8234-123456789abc"],
        ["1234"],
    ),
    Case("any object", {"type": "object"}, [{}, {"a": [1, {"b": None}]}], [[], 1]),
    Case("any value", {}, [1, "x", [], {"a": 1}], []),
    Case("number", None, ["1", "-2.50"], ["x", "1."], r"-?[0-9]+(\.[0-9]+)?"),
    Case("alternatives", None, ["yes", "no", "日本"], ["maybe"], "yes|no|日本"),
    Case("anchored", None, ["abc"], ["^abc$"], "^abc$"),
)
# What no grammar can say, or only at great length; enforcing less than was asked is worse than
# saying so.
UNUSUAL: Final[Sequence[tuple[str, Mapping[str, Any]]]] = (
    ("not", {"not": {"type": "string"}}),
    ("uniqueItems", {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}),
    ("contains", {"type": "array", "contains": {"const": 1}}),
    ("if/then", {"if": {"type": "integer"}, "then": {"minimum": 5}}),
    ("dependentRequired", {"type": "object", "dependentRequired": {"a": ["b"]}}),
    ("propertyNames", {"type": "object", "propertyNames": {"maxLength": 2}}),
    ("overlapping oneOf", {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 3}]}),
    ("unknown format", {"type": "string", "format": "no-such-format"}),
    ("external $ref", {"$ref": "http://127.0.0.1:9/schema"}),
    ("look-ahead", {"type": "string", "pattern": "a(?=b)b"}),
    ("impossible", {"type": "string", "minLength": 5, "maxLength": 3}),
)
