"""Spans of requests, from the gateway to the replica, for a collector that speaks OTLP.

    POST /v1/chat/completions            a request at a gateway; continues the client's trace
      chat MODEL                         each of its sequences
        queue, prefill, decode, resume   where its time went; a resume for each move
        replica                          its stay on a replica, told by that replica
          waiting, prefill, decode

Attributes are OpenTelemetry's for generative AI where it has them. What was asked and answered is
never among them.
"""

import atexit
import threading
from collections.abc import Callable, Mapping
from typing import Final, Self, TypeAlias

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

ENDPOINT_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PATH: Final = "/v1/traces"
_CLOSE_S: Final = 2.0
_FINISHED: Final = frozenset({"stop", "length"})

Attributes: TypeAlias = Mapping[str, str | int | float | tuple[str, ...]]


class Tracing:
    """Makes the spans of one process.

    Args:
        process: what this process is called.
        processor: where spans go.
        clock: nanoseconds since the epoch.
        service: what all of it is called.
    """

    def __init__(
        self,
        process: str,
        processor: SpanProcessor,
        clock: Callable[[], int],
        service: str = "tidegate",
    ) -> None:
        named = {"service.name": service, "service.instance.id": process}
        # Of its own, not the process-wide one: that is Ray's to set, or the user's.
        self._provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("tidegate")
        self._w3c = TraceContextTextMapPropagator()
        self.clock = clock

    @classmethod
    def of(
        cls,
        endpoint: str | None,
        environ: Mapping[str, str],
        process: str,
        clock: Callable[[], int],
    ) -> Self | None:
        """Return what makes spans, or None where nobody is told where they should go.

        Args:
            endpoint: the collector's address; None leaves it to OpenTelemetry's variables.
            environ: the environment.
            process: what this process is called.
            clock: nanoseconds since the epoch.
        """
        if endpoint is None and not any(environ.get(name) for name in ENDPOINT_VARIABLES):
            return None
        # Here, since most deployments have no use for it.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        target = None if endpoint is None else endpoint.rstrip("/").removesuffix(_PATH) + _PATH
        service = environ.get("OTEL_SERVICE_NAME") or "tidegate"
        tracing = cls(process, BatchSpanProcessor(OTLPSpanExporter(target)), clock, service)
        atexit.register(tracing.close)
        return tracing

    def request(self, route: str, headers: Mapping[str, str], request_id: str) -> "RequestSpan":
        """Begin the span of an HTTP request; one without a valid ``traceparent`` begins a trace."""
        attributes = {
            "http.request.method": "POST",
            "http.route": route,
            "url.path": route,
            "tidegate.request_id": request_id,
        }
        span = self._tracer.start_span(
            f"POST {route}",
            self._w3c.extract(headers),
            SpanKind.SERVER,
            attributes,
            start_time=self.clock(),
        )
        return RequestSpan(self, span)

    def stay(self, traceparent: str) -> "StaySpans":
        """Begin the spans of a request's stay on this replica."""
        parent = self._w3c.extract({"traceparent": traceparent})
        return StaySpans(self, self.start("replica", parent))

    def start(
        self,
        name: str,
        parent: Context | Span,
        attributes: Attributes | None = None,
        at: int | None = None,
    ) -> Span:
        """Begin a span below another, now unless told otherwise."""
        context = set_span_in_context(parent, Context()) if isinstance(parent, Span) else parent
        began = self.clock() if at is None else at
        return self._tracer.start_span(name, context, attributes=attributes, start_time=began)

    def traceparent(self, span: Span) -> str:
        """Return the header under which others add to a span; empty if it is not recorded."""
        if not span.is_recording():
            return ""
        carrier: dict[str, str] = {}
        self._w3c.inject(carrier, set_span_in_context(span, Context()))
        return carrier.get("traceparent", "")

    def close(self) -> None:
        """Send what has ended, if that can be done soon; nothing is sent any more."""
        # OpenTelemetry itself would keep a process for half a minute for a collector that is away.
        thread = threading.Thread(target=self._provider.shutdown, daemon=True)
        thread.start()
        thread.join(_CLOSE_S)


class RequestSpan:
    """The span of an HTTP request."""

    def __init__(self, tracing: Tracing, span: Span) -> None:
        self._tracing = tracing
        self._span = span

    def sequence(self, operation: str, model: str, attributes: Attributes) -> "SequenceSpans":
        """Begin the spans of one of its sequences; see ``Visit.sequence``."""
        named: Attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "tidegate",
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
            **attributes,
        }
        return SequenceSpans(
            self._tracing, self._tracing.start(f"{operation} {model}", self._span, named)
        )

    def end(self, status: int | None) -> None:
        """End it; None: the client left before there was a status."""
        if status is not None:
            self._span.set_attribute("http.response.status_code", status)
            if status >= 500:
                self._span.set_attribute("error.type", str(status))
                self._span.set_status(StatusCode.ERROR)
        self._span.end(self._tracing.clock())


class SequenceSpans:
    """The spans of one sequence: a ``Timeline``. One phase is open at any time until the end."""

    def __init__(self, tracing: Tracing, span: Span) -> None:
        self._tracing = tracing
        self._span = span
        self._began = tracing.clock()
        self._begun = False
        self._seeking = True
        self._over = False
        self._phase = tracing.start("queue", span)
        self.traceparent = tracing.traceparent(span)

    def taken(self, queued_s: float) -> None:
        if self._seeking:
            self._phase.set_attribute("tidegate.queued_s", queued_s)
            self._turn("decode" if self._begun else "prefill")

    def first_token(self) -> None:
        self._begun = True
        waited = (self._tracing.clock() - self._began) / 1e9
        self._span.set_attribute("gen_ai.response.time_to_first_chunk", waited)
        self._turn("decode")

    def moved(self, reason: str) -> None:
        self._turn("resume", {"tidegate.reason": reason})
        self._seeking = True

    def ended(self, outcome: str, tokens: int) -> None:
        if self._over:
            return
        self._over = True
        self._span.set_attribute("gen_ai.usage.output_tokens", tokens)
        self._span.set_attribute("tidegate.outcome", outcome)
        if outcome in _FINISHED:
            self._span.set_attribute("gen_ai.response.finish_reasons", (outcome,))
        elif outcome != "abort":
            self._span.set_attribute("error.type", outcome)
            self._span.set_status(StatusCode.ERROR)
        now = self._tracing.clock()
        self._phase.end(now)
        self._span.end(now)

    def _turn(self, phase: str, attributes: Attributes | None = None) -> None:
        self._seeking = False
        self._phase.end(self._tracing.clock())
        self._phase = self._tracing.start(phase, self._span, attributes)


class StaySpans:
    """The spans of a request's stay on a replica, which tells of it when it sends something."""

    def __init__(self, tracing: Tracing, span: Span) -> None:
        self._tracing = tracing
        self._span = span
        self._came = tracing.clock()
        self._phase = tracing.start("waiting", span)
        self._decodes = False

    def sent(self, tokens: int, queued_s: float | None) -> None:
        """A step was done for it.

        Args:
            tokens: how many it gave.
            queued_s: how long it waited before its first step, if this was that step.
        """
        if queued_s is not None:
            self._turn("prefill", self._came + round(queued_s * 1e9))
        if tokens and not self._decodes:
            self._decodes = True
            self._turn("decode", self._tracing.clock())

    def ended(self, outcome: str) -> None:
        """It is over here: a finish reason, "abort" or "error"; "drained" or "lost" if it moves."""
        self._span.set_attribute("tidegate.outcome", outcome)
        now = self._tracing.clock()
        self._phase.end(now)
        self._span.end(now)

    def _turn(self, phase: str, at: int) -> None:
        self._phase.end(at)
        self._phase = self._tracing.start(phase, self._span, at=at)
