"""Spans tell where a request's time went, on both sides of the process border."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from deployments.tracing import SequenceSpans, Tracing
from tests.deployments.collector import Collector

CHAT = "/v1/chat/completions"
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


class Clock:
    def __init__(self) -> None:
        self.now = 10**18

    def __call__(self) -> int:
        self.now += 1_000_000
        return self.now


class Traced:
    """A gateway and a replica that write into one memory."""

    def __init__(self) -> None:
        self.memory = InMemorySpanExporter()
        self.clock = Clock()
        self.gateway = Tracing("gateway", SimpleSpanProcessor(self.memory), self.clock)
        self.replica = Tracing("replica-1", SimpleSpanProcessor(self.memory), self.clock)

    def request(self, headers: dict[str, str] | None = None) -> tuple[Any, SequenceSpans]:
        span = self.gateway.request(CHAT, headers or {}, "req-1")
        return span, span.sequence("chat", "m", {"gen_ai.usage.input_tokens": 7})

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.memory.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def follow(first: ReadableSpan, then: ReadableSpan) -> bool:
    assert first.end_time is not None
    assert then.start_time is not None
    return 0 <= then.start_time - first.end_time <= 1_000_000


def test_a_request_continues_the_clients_trace_and_says_what_it_was() -> None:
    traced = Traced()
    request, sequence = traced.request(CALLER)
    sequence.taken(0.25)
    sequence.first_token()
    sequence.ended("length", 3)
    request.end(200)
    server, chat = traced.one(f"POST {CHAT}"), traced.one("chat m")
    assert server.context is not None
    assert f"{server.context.trace_id:032x}" == TRACE
    assert f"{parent_of(server):016x}" == "b7ad6b7169203331"
    assert parent_of(chat) == id_of(server)
    assert server.attributes is not None
    assert server.attributes["http.response.status_code"] == 200
    assert server.attributes["tidegate.request_id"] == "req-1"
    assert chat.attributes is not None
    assert chat.attributes["gen_ai.operation.name"] == "chat"
    assert chat.attributes["gen_ai.request.model"] == "m"
    assert chat.attributes["gen_ai.usage.input_tokens"] == 7
    assert chat.attributes["gen_ai.usage.output_tokens"] == 3
    assert chat.attributes["gen_ai.response.finish_reasons"] == ("length",)
    phases = [traced.one(name) for name in ("queue", "prefill", "decode")]
    assert {parent_of(phase) for phase in phases} == {id_of(chat)}
    assert follow(phases[0], phases[1])
    assert follow(phases[1], phases[2])


@pytest.mark.parametrize("header", ["", "nonsense", "00-0-0-01", "ff-" + "f" * 80])
def test_a_request_without_a_valid_trace_begins_one(header: str) -> None:
    traced = Traced()
    request, sequence = traced.request({"traceparent": header})
    sequence.ended("stop", 1)
    request.end(200)
    assert traced.one(f"POST {CHAT}").parent is None


def test_each_move_is_a_span_and_it_goes_on_where_it_was() -> None:
    traced = Traced()
    request, sequence = traced.request()
    sequence.taken(0.0)
    sequence.moved("drained")
    sequence.taken(0.0)
    sequence.first_token()
    sequence.moved("lost")
    sequence.taken(0.0)
    sequence.ended("stop", 9)
    request.end(200)
    names = [span.name for span in traced.memory.get_finished_spans()]
    assert names == [
        *("queue", "prefill", "resume", "prefill", "decode", "resume", "decode"),
        "chat m",
        f"POST {CHAT}",
    ]
    reasons = [dict(span.attributes or {})["tidegate.reason"] for span in traced.spans("resume")]
    assert reasons == ["drained", "lost"]


def test_a_first_token_may_overtake_the_word_that_it_was_taken() -> None:
    traced = Traced()
    request, sequence = traced.request()
    sequence.first_token()
    sequence.taken(0.1)
    sequence.ended("stop", 2)
    request.end(200)
    names = [span.name for span in traced.memory.get_finished_spans()]
    assert names == ["queue", "decode", "chat m", f"POST {CHAT}"]


@pytest.mark.parametrize(
    ("outcome", "failed"), [("stop", False), ("abort", False), ("busy", True), ("error", True)]
)
def test_what_went_wrong_is_an_error_and_a_client_that_left_is_none(
    outcome: str, failed: bool
) -> None:
    traced = Traced()
    request, sequence = traced.request()
    sequence.ended(outcome, 0)
    sequence.ended("abort", 0)  # a second end changes nothing
    request.end(500 if failed else None)
    chat, server = traced.one("chat m"), traced.one(f"POST {CHAT}")
    assert dict(chat.attributes or {})["tidegate.outcome"] == outcome
    assert (not chat.status.is_ok, not server.status.is_ok) == (failed, failed)


def test_a_replica_adds_its_own_spans_to_the_sequence_of_another_process() -> None:
    traced = Traced()
    request, sequence = traced.request(CALLER)
    stay = traced.replica.stay(sequence.traceparent)
    sequence.taken(0.0)
    came = traced.clock.now
    stay.sent(0, 0.0005)
    stay.sent(1, None)
    stay.sent(1, None)
    stay.ended("stop")
    sequence.ended("stop", 2)
    request.end(200)
    stays, chat = traced.one("replica"), traced.one("chat m")
    assert stays.context is not None
    assert f"{stays.context.trace_id:032x}" == TRACE
    assert parent_of(stays) == id_of(chat)
    assert stays.resource.attributes["service.instance.id"] == "replica-1"
    here = [
        s for s in traced.memory.get_finished_spans() if s.parent and parent_of(s) == id_of(stays)
    ]
    assert [span.name for span in here] == ["waiting", "prefill", "decode"]
    assert here[1].start_time is not None
    assert here[1].start_time - came < 1_000_000


def test_a_first_delta_with_a_token_has_a_prefill_too() -> None:
    traced = Traced()
    _, sequence = traced.request()
    stay = traced.replica.stay(sequence.traceparent)
    stay.sent(1, 0.0)
    stay.ended("abort")
    assert [span.name for span in traced.memory.get_finished_spans()] == [
        *("waiting", "prefill", "decode", "replica")
    ]


def test_what_is_not_sampled_is_not_traced_further(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = Traced()
    request, sequence = traced.request({"traceparent": CALLER["traceparent"][:-1] + "0"})
    assert sequence.traceparent == ""
    sequence.ended("stop", 1)
    request.end(200)
    assert traced.memory.get_finished_spans() == ()


# ---- where they go ----------------------------------------------------------------------------


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector().running() as collector:
        yield collector


@pytest.mark.parametrize("way", ["setting", "setting with a path", "variable", "traces variable"])
def test_spans_arrive_at_a_collector(
    collector: Collector, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{collector.server_port}"
    endpoint, environ = None, {}
    if way == "setting":
        endpoint = f"{url}/"
    elif way == "setting with a path":
        endpoint = f"{url}/v1/traces"
    elif way == "variable":
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
    else:
        environ = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{url}/v1/traces"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    tracing = Tracing.of(endpoint, environ, "gateway-1", Clock())
    assert tracing is not None
    request = tracing.request(CHAT, {}, "req-1")
    request.sequence("chat", "m", {}).ended("stop", 3)
    request.end(200)
    tracing.close()
    ((path, message),) = collector.took
    assert path == "/v1/traces"
    (resource,) = message.resource_spans
    named = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert (named["service.name"], named["service.instance.id"]) == ("tidegate", "gateway-1")
    names = {span.name for scope in resource.scope_spans for span in scope.spans}
    assert names == {f"POST {CHAT}", "chat m", "queue"}


def test_a_collector_that_is_away_keeps_no_process_alive() -> None:
    """OpenTelemetry tries for 30 s to send what is left."""
    script = """
import threading, time
from deployments.tracing import Tracing
with __import__("socket").socket() as silent:
    silent.bind(("127.0.0.1", 0))
    silent.listen()
    port = silent.getsockname()[1]
    tracing = Tracing.of(f"http://127.0.0.1:{port}", {}, "gateway", time.time_ns)
    tracing.request("/v1/completions", {}, "req-1").end(200)
    tracing.close()
    print([one.is_alive() for one in threading.enumerate() if "shutdown" in one.name])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    # It was still at it when the process went on, and ended.
    assert done.stdout == "[True]\n"


def test_without_a_collector_there_is_nothing() -> None:
    assert Tracing.of(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, "gateway", Clock()) is None
