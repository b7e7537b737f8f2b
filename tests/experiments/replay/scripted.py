"""A server whose every answer a test writes, and a clock that a test moves."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from yarl import URL

METRICS = """\
# HELP tidegate:num_replicas Replicas by state.
# TYPE tidegate:num_replicas gauge
tidegate:num_replicas{model_name="m",state="serving"} 2
tidegate:num_replicas{model_name="m",state="leaving"} 1
tidegate:num_replicas{model_name="m",state="suspect"} 0
tidegate:num_requests_waiting{model_name="m",replica="router"} 5
tidegate:num_requests_waiting{model_name="m",replica="a"} 1
tidegate:num_requests_waiting{model_name="m",replica="b"} 2
tidegate:num_requests_running{model_name="m",replica="a"} 4
tidegate:num_requests_running{model_name="m",replica="b"} 0
tidegate:oldest_wait_seconds{model_name="m",replica="router"} 1.5
tidegate:kv_blocks{model_name="m",replica="a"} 48
tidegate:kv_blocks{model_name="m",replica="b"} 48
tidegate:kv_blocks_free{model_name="m",replica="a"} 8
tidegate:kv_blocks_free{model_name="m",replica="b"} 40
tidegate:num_preemptions_total{model_name="m",replica="a"} 10
tidegate:num_preemptions_total{model_name="m",replica="b"} 3
tidegate:generation_tokens_total{model_name="m"} 1e6
"""


class HandClock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.reads = 0
        self.waited_for = 0
        self._now = 0.0
        self._changed = asyncio.Condition()

    def now(self) -> float:
        self.reads += 1
        return self._now

    async def until(self, at: float) -> None:
        async with self._changed:
            self.waited_for += 1
            await self._changed.wait_for(lambda: self._now >= at)
            self.waited_for -= 1

    async def move(self, to: float) -> None:
        """Let it be ``to``, and let all that waited for it go on."""
        async with self._changed:
            self._now = to
            self._changed.notify_all()
        await asyncio.sleep(0)


@dataclass(eq=False)
class Exchange:
    """One request, and what is answered to it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    writer: asyncio.StreamWriter
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def status(self, status: int, body: Any, **headers: str) -> None:
        """Answer at once; underscores in names of headers are dashes."""
        content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(content)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        await self.writer.drain()
        self.over.set()

    async def error(self, status: int, kind: str, code: str | None, **headers: str) -> None:
        body = {"error": {"message": "no", "type": kind, "param": None, "code": code}}
        await self.status(status, body, **headers)

    async def begin(self) -> None:
        """Begin a stream."""
        self.writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        await self.writer.drain()

    async def raw(self, data: bytes) -> None:
        """Send bytes of a stream."""
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()

    async def event(self, content: Any) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        await self.raw(f"data: {text}\n\n".encode())

    async def token(self, text: str = " a") -> None:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
        await self.event({"id": "1", "choices": [choice], "usage": None})

    async def finish(self, prompt: int, output: int, cached: int | None = None) -> None:
        """Send the usage and the end."""
        details = None if cached is None else {"cached_tokens": cached}
        usage = {"prompt_tokens": prompt, "completion_tokens": output}
        usage_event = {"choices": [], "usage": usage | {"prompt_tokens_details": details}}
        await self.event(usage_event)
        await self.event("[DONE]")
        await self.end()

    async def end(self) -> None:
        """End the stream as HTTP wants it."""
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()
        self.over.set()

    def cut(self) -> None:
        """Close the connection without a word."""
        self.writer.close()
        self.over.set()

    def reset(self) -> None:
        """Break the connection."""
        self.writer.transport.abort()
        self.over.set()

    async def whole(self) -> None:
        """Answer in full, as asked."""
        await self.begin()
        for _ in range(self.body["max_tokens"]):
            await self.token()
        await self.finish(len(self.body["prompt"]), self.body["max_tokens"])


class Scripted:
    """Answers requests as a test says; those for the model's name and metrics by itself.

    Attributes:
        url: where.
        asked: requests for completions, in their order.
        metrics: the page; None for a server that has none.
        key: that ``/v1/models`` wants; empty for none.
    """

    def __init__(self, answer: Callable[[Exchange], Awaitable[None]] | None = None) -> None:
        self.url = URL()
        self.asked: list[Exchange] = []
        self.metrics: str | None = None
        self.models: Any = {"data": [{"id": "m", "max_model_len": 100}]}
        self.key = ""
        self._answer = answer
        self._came = asyncio.Condition()
        self._connections: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Scripted"]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        try:
            yield self
        finally:
            server.close()
            for writer in self._connections:
                writer.transport.abort()
            await server.wait_closed()

    async def exchange(self, number: int) -> Exchange:
        """Return a request by its place, once it is there."""
        async with self._came:
            await self._came.wait_for(lambda: len(self.asked) > number)
        return self.asked[number]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                await self._exchange(reader, writer)
        self._connections.discard(writer)
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in head[1:] if line)
        headers = {name.lower(): value for name, value in pairs}
        content = await reader.readexactly(int(headers.get("content-length", "0")))
        path = head[0].split()[1]
        exchange = Exchange(path, headers, json.loads(content or b"{}"), writer)
        if path != "/v1/completions":
            await self._other(exchange)
            return
        async with self._came:
            self.asked.append(exchange)
            self._came.notify_all()
        if self._answer is not None:
            await self._answer(exchange)
        await exchange.over.wait()

    async def _other(self, exchange: Exchange) -> None:
        key = exchange.headers.get("authorization", "Bearer ").removeprefix("Bearer ")
        if exchange.path == "/v1/models" and key != self.key:
            await exchange.error(401, "invalid_request_error", "invalid_api_key")
            return
        known = {"/v1/models": self.models, "/metrics": self.metrics, "/version": None}
        body = known.get(exchange.path)
        if body is None:
            await exchange.error(404, "invalid_request_error", "not_found")
        else:
            await exchange.status(200, body)
