"""What operators are told of a request: its line in the log and its spans, from the outside."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from ray._common.formatters import JSONFormatter
from ray.serve._private.logging_utils import ServeFormatter

from deployments.channel import ReplicaLost
from deployments.logs import PACKAGES
from deployments.messages import Refusal, RefusalKind
from deployments.tracing import Tracing
from tests.deployments.house import House, open_house

SECRET = "Xylophone"
BODY = {"prompt": SECRET, "max_tokens": 2, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 2}
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ID = {"x-request-id": "req-7"}


class Records(logging.Handler):
    """All that any logger says, down to the last detail."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of(self, logger: str) -> list[dict[str, Any]]:
        """The JSON lines of one of our loggers."""
        formatter = JSONFormatter()
        return [json.loads(formatter.format(r)) for r in self.records if r.name == logger]


@pytest.fixture
def log() -> Iterator[Records]:
    records = Records()
    loggers = [logging.getLogger(name) for name in PACKAGES]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(records)
        logger.setLevel(logging.DEBUG)
    yield records
    for logger, level in zip(loggers, levels, strict=True):
        logger.removeHandler(records)
        logger.setLevel(level)


@asynccontextmanager
async def watched(
    model: Path, memory: InMemorySpanExporter | None = None, *, log_requests: bool = True
) -> AsyncIterator[House]:
    """A gateway as Serve would run it, whose only replica answers with two tokens."""
    async with open_house(model, log_requests=log_requests) as house:
        if memory is not None:
            processor = SimpleSpanProcessor(memory)
            house.gateway._tracing = Tracing("gateway", processor, time.time_ns)
        # A level is set when a deployment is built.
        for name in PACKAGES:
            logging.getLogger(name).setLevel(logging.DEBUG)
        app = house.gateway.__serve_build_asgi_app__()
        house.router.answer = "r"
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as house.http:
            yield house


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("stream", [False, True])
async def test_each_request_has_one_line_with_its_figures_as_fields(
    tiny_model_dir: Path, log: Records, stream: bool
) -> None:
    async with watched(tiny_model_dir) as house:
        headers = {**ID, "x-tl-priority": "3"}
        answer = await house.http.post(
            "/v1/completions", json={**BODY, "stream": stream}, headers=headers
        )
        assert answer.status_code == 200
        await settle()
        (line,) = log.of("deployments.visit")
    assert line["request_id"] == "req-7"
    assert (line["http_route"], line["status"], line["outcome"]) == (
        "/v1/completions",
        200,
        "length",
    )
    assert (line["prompt_tokens"], line["generated_tokens"]) == (len(SECRET), 2)
    assert (line["priority"], line["tenant"]) == (3, "")
    assert 0 <= line["ttft_s"] <= line["duration_s"]
    assert line["message"].startswith("request ended: http_route=/v1/completions status=200 ")


async def test_what_was_refused_has_a_line_too(tiny_model_dir: Path, log: Records) -> None:
    async with watched(tiny_model_dir) as house:
        house.router.answer = Refusal(RefusalKind.BUSY, retry_after=2.5)
        await house.http.post("/v1/completions", json=BODY, headers=ID)
        await house.http.post("/v1/completions", content=b"{", headers=ID)
        await settle()
        busy, wrong = log.of("deployments.visit")
    assert (busy["status"], busy["outcome"], busy["generated_tokens"]) == (429, "busy", 0)
    assert (wrong["status"], wrong["outcome"], wrong["ttft_s"]) == (400, "", None)


async def test_there_are_no_lines_unless_they_are_asked_for(
    tiny_model_dir: Path, log: Records
) -> None:
    async with watched(tiny_model_dir, log_requests=False) as house:
        await house.http.post("/v1/completions", json=BODY)
        await settle()
    assert log.of("deployments.visit") == []


async def test_neither_prompts_nor_answers_are_ever_logged(
    tiny_model_dir: Path, log: Records
) -> None:
    """At the most talkative level, whatever becomes of the request."""
    answered = "Quagmire"
    async with watched(tiny_model_dir) as house:
        mood = ""

        async def submit(
            submission: Any, within_s: float | None = None, traceparent: str = ""
        ) -> None:
            key = submission.key
            listener = house.link.listeners[key]
            loop = asyncio.get_running_loop()
            if mood == "dies" and not submission.generated:
                loop.call_soon(listener, (key, (65,), answered, None, None, None))
                loop.call_soon(listener, ReplicaLost("r", "it died"))
            elif mood == "fails":
                loop.call_soon(listener, (key, (), "", None, "it broke", None))
            else:
                loop.call_soon(listener, (key, (66,), answered, "length", None, None))

        house.link.submit = submit  # type: ignore[method-assign]
        statuses = []
        for mood in ("well", "dies", "fails"):  # noqa: B007
            for body in (BODY, {**BODY, "stop": [SECRET]}, {**BODY, "temperature": SECRET}):
                answer = await house.http.post("/v1/completions", json=body, headers=ID)
                statuses.append(answer.status_code)
                answer = await house.http.post("/v1/chat/completions", json=CHAT, headers=ID)
        await settle()
    assert set(statuses) == {200, 400, 500}
    formatter = JSONFormatter()
    lines = [formatter.format(record) for record in log.records]
    assert any("goes on elsewhere" in line for line in lines)
    assert any("failed" in line for line in lines)
    for line in lines:
        assert SECRET not in line
        assert answered not in line
    # Every line about a request can be found by its id, which stands there once: Serve puts
    # that of a record in front of its message.
    assert {json.loads(line)["request_id"] for line in lines if '"request' in line} == {"req-7"}
    as_text = ServeFormatter("gateway", "g")
    for record in log.records:
        if record.getMessage().startswith("request"):
            assert as_text.format(record).count("req-7") == 1


# ---- traces -----------------------------------------------------------------------------------


def names(memory: InMemorySpanExporter) -> list[str]:
    return [span.name for span in memory.get_finished_spans()]


async def test_a_request_is_traced_from_its_first_byte_to_its_last(tiny_model_dir: Path) -> None:
    memory = InMemorySpanExporter()
    carried: list[str] = []
    async with watched(tiny_model_dir, memory, log_requests=False) as house:
        original = house.link.submit

        async def submit(
            submission: Any, within_s: float | None = None, traceparent: str = ""
        ) -> None:
            carried.append(traceparent)
            await original(submission, traceparent)

        house.link.submit = submit  # type: ignore[method-assign]
        headers = {**ID, "traceparent": CALLER}
        await house.http.post("/v1/completions", json={**BODY, "n": 2}, headers=headers)
        await house.http.get("/v1/models", headers=headers)
        await settle()
    # The clients' trace, and the span of the sequence that each replica's spans belong to.
    spans = {f"{s.context.span_id:016x}": s for s in memory.get_finished_spans() if s.context}
    assert len(carried) == 2
    for header in carried:
        version, trace, parent, flags = header.split("-")
        assert (version, trace, flags) == ("00", CALLER.split("-")[1], "01")
        assert spans[parent].name == "text_completion m"
    assert names(memory).count("POST /v1/completions") == 1
    assert not any("models" in name for name in names(memory))
    for span in memory.get_finished_spans():
        assert SECRET not in json.dumps(dict(span.attributes or {}))


async def test_a_resumed_request_has_a_span_for_its_move(tiny_model_dir: Path) -> None:
    memory = InMemorySpanExporter()
    async with watched(tiny_model_dir, memory, log_requests=False) as house:
        lives = 0

        async def submit(
            submission: Any, within_s: float | None = None, traceparent: str = ""
        ) -> None:
            nonlocal lives
            lives += 1
            loop, key = asyncio.get_running_loop(), submission.key
            listener = house.link.listeners[key]
            if lives == 1:
                loop.call_soon(listener, (key, (65,), "a", None, None, None))
                loop.call_later(0.01, listener, ReplicaLost("r", "it died"))
            else:
                loop.call_soon(listener, (key, (66,), "b", "length", None, None))

        house.link.submit = submit  # type: ignore[method-assign]
        answer = await house.http.post("/v1/completions", json=BODY, headers=ID)
        assert answer.status_code == 200
        await settle()
    (moved,) = (s for s in memory.get_finished_spans() if s.name == "resume")
    assert dict(moved.attributes or {})["tidegate.reason"] == "lost"
    sequence = one(memory, "text_completion m")
    assert moved.parent is not None
    assert sequence.context is not None
    assert moved.parent.span_id == sequence.context.span_id
    assert dict(sequence.attributes or {})["gen_ai.usage.output_tokens"] == 2


async def test_a_client_that_leaves_is_an_end_as_well(tiny_model_dir: Path, log: Records) -> None:
    memory = InMemorySpanExporter()
    async with watched(tiny_model_dir, memory) as house:
        began = asyncio.Event()

        async def submit(
            submission: Any, within_s: float | None = None, traceparent: str = ""
        ) -> None:
            began.set()

        house.link.submit = submit  # type: ignore[method-assign]
        asking = asyncio.create_task(house.http.post("/v1/completions", json=BODY, headers=ID))
        await began.wait()
        asking.cancel()
        await asyncio.wait([asking])
        await settle()
        (line,) = log.of("deployments.visit")
    assert (line["outcome"], line["status"]) == ("abort", None)
    assert dict(one(memory, "text_completion m").attributes or {})["tidegate.outcome"] == "abort"
    assert one(memory, "POST /v1/completions").status.is_unset


def one(memory: InMemorySpanExporter, name: str) -> ReadableSpan:
    (span,) = (span for span in memory.get_finished_spans() if span.name == name)
    return span
