"""Visit: one HTTP request as operators see it, for traces and for the log.

Nothing of what was asked or answered is kept.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.timeline import UNTOLD, Timeline
from deployments.tracing import Attributes, RequestSpan, Tracing

logger = logging.getLogger(__name__)

OPERATIONS: Final[Mapping[str, str]] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
}
"""The routes that are looked at, and what OpenTelemetry calls what is done there."""

_KEY: Final = "tidegate.visit"
_ID_SHOWN: Final = 128  # characters of a request's id that are logged


@dataclass(slots=True)
class Visit:
    """One HTTP request.

    Attributes:
        route: its path.
        request_id: its x-request-id.
        clock: seconds, never going back.
        span: of the request, if it is traced.
        began: when it came, by the clock.
        model, tenant, priority: what it asks for, as far as is known.
        prompt_tokens: of its prompts.
        tokens: generated, of those sequences that have ended.
        first_at: when its first token came; None if none has.
        outcomes: how its sequences ended.
    """

    route: str
    request_id: str
    clock: Callable[[], float]
    span: RequestSpan | None
    began: float = field(init=False)
    model: str = ""
    tenant: str = ""
    priority: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    first_at: float | None = None
    outcomes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def asks(self, model: str, tenant: str, priority: int, prompt_tokens: int) -> None:
        """Note what the request turned out to be."""
        self.model, self.tenant, self.priority = model, tenant, priority
        self.prompt_tokens = prompt_tokens

    def sequence(self, prompt_tokens: int, max_tokens: int) -> Timeline:
        """Return what records one of its sequences; after ``asks``."""
        inner: Timeline = UNTOLD
        if self.span is not None:
            attributes: Attributes = {
                "gen_ai.usage.input_tokens": prompt_tokens,
                "gen_ai.request.max_tokens": max_tokens,
                "tidegate.priority": self.priority,
                **({"tidegate.tenant": self.tenant} if self.tenant else {}),
            }
            inner = self.span.sequence(OPERATIONS[self.route], self.model, attributes)
        return _Noted(self, inner)

    def line(self, status: int | None) -> tuple[str, dict[str, object]]:
        """Return a line for the log, and the same as fields; the id is only among those.

        Args:
            status: of the response; None if there was none.
        """
        now = self.clock()
        ttft = None if self.first_at is None else round(self.first_at - self.began, 4)
        fields: dict[str, object] = {
            "request_id": self.request_id,
            "http_route": self.route,
            "status": status,
            "outcome": ",".join(sorted(set(self.outcomes))),
            "prompt_tokens": self.prompt_tokens,
            "generated_tokens": self.tokens,
            "ttft_s": ttft,
            "duration_s": round(now - self.began, 4),
            "tenant": self.tenant,
            "priority": self.priority,
        }
        words = (f"{k}={v}" for k, v in fields.items() if v not in (None, "") and k != "request_id")
        return f"request ended: {' '.join(words)}", fields


class _Noted:
    """A ``Timeline`` that the visit reads along."""

    def __init__(self, visit: Visit, inner: Timeline) -> None:
        self._visit = visit
        self._inner = inner
        self.traceparent = inner.traceparent

    def taken(self, queued_s: float) -> None:
        self._inner.taken(queued_s)

    def first_token(self) -> None:
        if self._visit.first_at is None:
            self._visit.first_at = self._visit.clock()
        self._inner.first_token()

    def moved(self, reason: str) -> None:
        self._inner.moved(reason)

    def ended(self, outcome: str, tokens: int) -> None:
        self._visit.tokens += tokens
        self._visit.outcomes.append(outcome)
        self._inner.ended(outcome, tokens)


class Visits:
    """ASGI middleware that sees each request from its first byte to its last.

    Args:
        app: what answers.
        tracing: makes spans, if there are to be any.
        log: log a line for each request.
    """

    def __init__(self, app: ASGIApp, tracing: Tracing | None, *, log: bool) -> None:
        self._app = app
        self._tracing = tracing
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and note how."""
        if scope["type"] != "http" or scope["path"] not in OPERATIONS:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        route, name = scope["path"], request_id(headers)
        span = None if self._tracing is None else self._tracing.request(route, headers, name)
        visit = scope[_KEY] = Visit(route, name, time.monotonic, span)
        status: int | None = None

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception:
            status = 500
            raise
        finally:
            # Sequences that were dropped with the connection say so in this turn of the loop.
            asyncio.get_running_loop().call_soon(self._end, visit, status)

    def _end(self, visit: Visit, status: int | None) -> None:
        if visit.span is not None:
            visit.span.end(status)
        if self._log:
            text, fields = visit.line(status)
            logger.info("%s", text, extra=fields)


def request_id(headers: Mapping[str, str]) -> str:
    """Return what the client calls its request, or Serve does; as much of it as is logged."""
    return headers.get("x-request-id", "")[:_ID_SHOWN]


def timeline_of(scope: Scope, prompt_tokens: int, max_tokens: int) -> Timeline:
    """Return what records a sequence of this request; nothing, if nobody looks."""
    visit: Visit | None = scope.get(_KEY)
    return UNTOLD if visit is None else visit.sequence(prompt_tokens, max_tokens)


def note(scope: Scope, model: str, tenant: str, priority: int, prompt_tokens: int) -> None:
    """Say what this request turned out to be, if somebody looks."""
    visit: Visit | None = scope.get(_KEY)
    if visit is not None:
        visit.asks(model, tenant, priority, prompt_tokens)
