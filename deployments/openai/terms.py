"""Terms: how a client wants to be served, beside what is generated."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from deployments.openai.errors import BadRequest
from deployments.openai.models import MAX_MS, GenerationRequest
from deployments.openai.served import Served
from deployments.validation import show

# As clients spell them; they are looked up in lower case.
PRIORITY_HEADER = "X-TL-Priority"
END_HEADER = "X-Request-Timeout-Ms"
FIRST_TOKEN_HEADER = "X-First-Token-Timeout-Ms"

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long the client waits, in seconds from the request's arrival; None is for ever.

    Attributes:
        first_token_s: for the first token.
        end_s: for the end.
    """

    first_token_s: float | None = None
    end_s: float | None = None

    def first(self) -> tuple[float | None, str]:
        """Return the limit that is over first while there is no token, and what it is for."""
        if self.first_token_s is None or (
            self.end_s is not None and self.end_s <= self.first_token_s
        ):
            return self.end_s, "end"
        return self.first_token_s, "first token"


@dataclass(frozen=True, slots=True)
class Terms:
    """How a client wants to be served.

    Attributes:
        stream: it wants events.
        include_usage: the stream ends with a chunk that carries the usage.
        continuous_usage: each chunk carries the usage so far.
        priority: higher is more urgent.
        service_tier: the tier used, if the client asked for one: it is echoed.
        limits: how long it waits.
        cache_salt: only requests with the same one share what a prefix cache keeps.
    """

    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    priority: int = 0
    service_tier: str | None = None
    limits: Limits = Limits()
    cache_salt: str = ""

    @classmethod
    def of(cls, request: GenerationRequest, headers: Mapping[str, str], served: Served) -> Self:
        """Read the terms of a request.

        Raises:
            BadRequest: a priority, tier or time limit that is not allowed.
        """
        options = request.stream_options
        return cls(
            stream=request.stream,
            include_usage=options.include_usage,
            continuous_usage=options.continuous_usage_stats,
            priority=_priority(request, headers, served),
            service_tier=_tier(request.service_tier, served),
            limits=Limits(
                _seconds(request.first_token_timeout_ms, headers, FIRST_TOKEN_HEADER),
                _seconds(request.timeout_ms, headers, END_HEADER),
            ),
            cache_salt=request.cache_salt or "",
        )


def _priority(request: GenerationRequest, headers: Mapping[str, str], served: Served) -> int:
    """The header wins over the body, and a number over the tier."""
    low, high = served.priorities
    if (given := _integer(headers, PRIORITY_HEADER)) is not None:
        return _within(given, low, high, PRIORITY_HEADER)
    if request.priority is not None:
        # Only the body counts as in vLLM: no other server has the header.
        if served.vllm_priority:
            return -_within(request.priority, -high, -low, "priority")
        return _within(request.priority, low, high, "priority")
    tier = _tier(request.service_tier, served)
    if tier is not None and tier in served.tiers:
        priority = served.tiers[tier]
        if not low <= priority <= high:
            raise BadRequest(
                f"'service_tier' {show(tier)} has priority {priority}, which must be from {low} "
                f"to {high} for this key.",
                "service_tier",
            )
        return priority
    # Who may not be as urgent as the others, and did not ask to be, is not refused.
    return max(low, min(0, high))


def _tier(asked: str | None, served: Served) -> str | None:
    if asked is None:
        return None
    if asked in ("auto", "default"):
        return "default"
    if asked not in served.tiers:
        known = ", ".join(["auto", "default", *served.tiers])
        raise BadRequest(
            f"'service_tier' must be one of {known}, not {show(asked)}.", "service_tier"
        )
    return asked


def _seconds(body_ms: int | None, headers: Mapping[str, str], header: str) -> float | None:
    given = _integer(headers, header)
    milliseconds = body_ms if given is None else _within(given, 1, MAX_MS, header)
    return None if milliseconds is None else milliseconds / 1000


def _integer(headers: Mapping[str, str], name: str) -> int | None:
    text = headers.get(name.lower())
    if text is None:
        return None
    if not _INTEGER.fullmatch(text.strip()):
        raise BadRequest(f"'{name}' must be an integer, not {show(text)}.", name)
    return int(text)


def _within(value: int, low: int, high: int, name: str) -> int:
    if not low <= value <= high:
        raise BadRequest(f"'{name}' must be from {low} to {high}, not {show(value)}.", name)
    return value
