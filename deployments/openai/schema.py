"""What a JSON schema may cost, found out before anybody compiles it.

llguidance bounds its own work in nearly all places.  In three it does not: intersecting
regular expressions doubles the work with each one, so that thirty of them take minutes; the
states of a number that must be a multiple are as many as the number it divides by; and of the
patterns for names of properties each is compared with each, so that 500 take ten seconds.

Nor may a schema ask for a text with a character that JSON can only write as "\\uXXXX", which
grammars have not (see ``structured``): llguidance would leave the character out.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from deployments.openai.errors import BadRequest

MAX_DEPTH = 64
# 12 take a millisecond, 16 some 20.
MAX_INTERSECTED = 12
MAX_MULTIPLE = 10_000
MAX_NAMES = 50

# Those that have a short escape are spelt like any other character.
_CONTROLS = frozenset(map(chr, (*range(32), 127))) - frozenset("\b\t\n\f\r")
# What stands for one character in an expression, or is a character of its syntax.
_PART = re.compile(r"\\(?:[xuU]\{\w*\}|x\w{2}|u\w{4}|U\w{8}|.)|.", re.DOTALL)

_EXPRESSIONS = ("pattern", "format", "patternProperties")


def require_tame(schema: Mapping[str, Any], field: str) -> None:
    """Check that it is safe to compile a schema.

    Args:
        schema: JSON; whether it is a valid schema is not looked at.
        field: where the client sent it, for errors.

    Raises:
        BadRequest: it is too deep, has or intersects too many expressions or divides by too
            large a number, asks for control characters, or holds options of llguidance's own.
    """
    if "x-guidance" in schema:
        raise BadRequest(f"'{field}' must not hold 'x-guidance'.", field)
    expressions, names, intersects = 0, 0, False
    largest = product = 1
    for node, depth in _objects(schema):
        if depth > MAX_DEPTH:
            raise BadRequest(f"'{field}' is nested deeper than {MAX_DEPTH} levels.", field)
        if _asks_for_control(node):
            raise BadRequest(f"'{field}' asks for a control character, which it may not.", field)
        expressions += sum(_count(node, key) for key in _EXPRESSIONS)
        names += _count(node, "patternProperties")
        intersects = intersects or "allOf" in node or ("$ref" in node and _restricts(node))
        multiple = _multiple(node.get("multipleOf"))
        largest, product = max(largest, multiple), min(product * multiple, MAX_MULTIPLE + 1)
    if names > MAX_NAMES:
        raise BadRequest(
            f"'{field}' has {names} 'patternProperties': at most {MAX_NAMES} can be enforced.",
            field,
        )
    together = "; with 'allOf', or with some beside a '$ref'," if intersects else ";"
    if intersects and expressions > MAX_INTERSECTED:
        raise BadRequest(
            f"'{field}' has {expressions} patterns and formats{together} at most "
            f"{MAX_INTERSECTED} can be enforced.",
            field,
        )
    if (product if intersects else largest) > MAX_MULTIPLE:
        raise BadRequest(
            f"'{field}' has too large a 'multipleOf'{together} at most {MAX_MULTIPLE} in all "
            "can be enforced.",
            field,
        )


def _asks_for_control(node: Mapping[str, Any]) -> bool:
    patterns = [node.get("pattern"), *_mapping(node.get("patternProperties"))]
    if any(isinstance(pattern, str) and _spells_control(pattern) for pattern in patterns):
        return True
    texts = (text for key in ("const", "enum") for text in _texts(node.get(key)))
    return any(not _CONTROLS.isdisjoint(text) for text in texts)


def _spells_control(pattern: str) -> bool:
    """Whether a control character has to stand somewhere; of a set, llguidance drops it."""
    set_: list[str] | None = None
    for part in _PART.findall(pattern):
        if set_ is None:
            if part == "[":
                set_ = []
            elif _is_control(part):
                return True
        elif part == "]" and set_:
            if len(set_) == 1 and _is_control(set_[0]):
                return True
            set_ = None
        else:
            set_.append(part)
    return False


def _is_control(part: str) -> bool:
    if part[0] != "\\":
        return part in _CONTROLS
    if part[1] not in "xuU":
        return part[1] in "0av"
    digits = part[2:].strip("{}")
    try:
        return chr(int(digits, 16)) in _CONTROLS
    except (ValueError, OverflowError):  # llguidance says what is wrong with it
        return False


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _texts(value: object) -> Iterator[str]:
    """All strings in a value."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)


def _count(node: Mapping[str, Any], key: str) -> int:
    value = node.get(key)
    if key == "patternProperties":
        return len(_mapping(value))
    return isinstance(value, str)


def _restricts(node: Mapping[str, Any]) -> bool:
    return any(key in node for key in (*_EXPRESSIONS, "multipleOf"))


def _multiple(value: object) -> int:
    """The whole number that decides the work for ``multipleOf``: 5 for 0.05, as for 5."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return 1  # absent, or llguidance says what is wrong with it
    _, digits, exponent = Decimal(str(value)).as_tuple()
    number = int("".join(map(str, digits)))
    shift = exponent if isinstance(exponent, int) else 0
    return max(1, number * 10 ** max(0, min(shift, 9)))


def _objects(schema: object) -> Iterator[tuple[Mapping[str, Any], int]]:
    """All objects in ``schema`` with their depth, itself included."""
    left: list[tuple[object, int]] = [(schema, 1)]
    while left:
        value, depth = left.pop()
        if isinstance(value, Mapping):
            yield value, depth
            left.extend((item, depth + 1) for item in value.values())
        elif isinstance(value, list):
            left.extend((item, depth + 1) for item in value)
