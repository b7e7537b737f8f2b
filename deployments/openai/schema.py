"""What a JSON schema may cost, found out before anybody compiles it.

llguidance bounds its own work in nearly all places.  In three it does not: intersecting
regular expressions doubles the work with each one, so that thirty of them take minutes; the
states of a number that must be a multiple are as many as the number it divides by; and of the
patterns for names of properties each is compared with each, so that 500 take ten seconds.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from deployments.openai.errors import BadRequest

MAX_DEPTH = 64
# 12 take a millisecond, 16 some 20.
MAX_INTERSECTED = 12
MAX_MULTIPLE = 10_000
MAX_NAMES = 50

_EXPRESSIONS = ("pattern", "format", "patternProperties")


def require_tame(schema: Mapping[str, Any], field: str) -> None:
    """Check that it is safe to compile a schema.

    Args:
        schema: JSON; whether it is a valid schema is not looked at.
        field: where the client sent it, for errors.

    Raises:
        BadRequest: it is too deep, has or intersects too many expressions or divides by too
            large a number, or holds options of llguidance's own.
    """
    if "x-guidance" in schema:
        raise BadRequest(f"'{field}' must not hold 'x-guidance'.", field)
    expressions, names, intersects = 0, 0, False
    largest = product = 1
    for node, depth in _objects(schema):
        if depth > MAX_DEPTH:
            raise BadRequest(f"'{field}' is nested deeper than {MAX_DEPTH} levels.", field)
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


def _count(node: Mapping[str, Any], key: str) -> int:
    value = node.get(key)
    if key == "patternProperties":
        return len(value) if isinstance(value, Mapping) else 0
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
