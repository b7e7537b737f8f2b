"""Refusal: what a server says in place of an answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TURNED_AWAY = frozenset({"rate_limit_error", "service_unavailable_error", "timeout_error"})
_STATUSES = frozenset({429, 503, 504})


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error, in the server's words.

    Attributes:
        reason: the error's type and code, or the status: few kinds, so that they can be counted.
        message: for a person.
        turned_away: it is about load or time and not about the request.
    """

    reason: str
    message: str = ""
    turned_away: bool = False


def refusal(body: Any, status: int = 200) -> Refusal:
    """Read an error of the OpenAI API, or what other servers send in its place.

    Args:
        body: JSON, or text; ``{"error": {…}}``, or the inside alone.
        status: of the answer; 200 for an event within a stream.
    """
    inside = body.get("error", body) if isinstance(body, Mapping) else body
    where = "an error event" if status == 200 else f"HTTP {status}"
    if not isinstance(inside, Mapping):
        return Refusal(where, str(inside)[:500], status in _STATUSES)
    kind, code = inside.get("type"), inside.get("code")
    reason = "/".join(str(part) for part in (kind, code) if isinstance(part, str) and part)
    away = status in _STATUSES or (status == 200 and kind in _TURNED_AWAY)
    return Refusal(reason or where, str(inside.get("message", ""))[:500], away)
