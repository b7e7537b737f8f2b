"""Streams from a client that costs next to nothing, since it shares the machine."""

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

_EVENT = b"data: {"


@dataclass(slots=True)
class Stream:
    """What came of one stream so far.

    Attributes:
        first_s: seconds from sending the request until its first event.
        events: that came; a token whose text does not show yet has none.
        tokens: of the answer, once it is complete.
    """

    first_s: float = 0.0
    events: int = 0
    tokens: int = 0


class Load:
    """Streams side by side.

    Args:
        url: of the server.
        prompts: token ids, one prompt for each stream.
        max_tokens: of each answer, which has exactly so many.

    Attributes:
        streams: one for each prompt.
    """

    def __init__(self, url: str, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
        self.streams = [Stream() for _ in prompts]
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._bodies = [_body(prompt, max_tokens) for prompt in prompts]

    @property
    def tokens(self) -> int:
        """Of all answers."""
        return sum(stream.tokens for stream in self.streams)

    @property
    def events(self) -> int:
        """Of all streams so far."""
        return sum(stream.events for stream in self.streams)

    async def run(self) -> float:
        """Read all streams to their ends; returns the seconds that took.

        Raises:
            RuntimeError: one ended without an answer.
        """
        each = zip(self.streams, self._bodies, strict=True)
        readers = [await self._connect(stream, body) for stream, body in each]
        began = time.perf_counter()
        await asyncio.gather(*(reader.read() for reader in readers))
        return time.perf_counter() - began

    async def _connect(self, stream: Stream, body: bytes) -> "_Reader":
        loop = asyncio.get_running_loop()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        request = head.encode() + body
        _, reader = await loop.create_connection(
            lambda: _Reader(stream, request), self._host, self._port
        )
        return reader


class _Reader(asyncio.Protocol):
    """Counts events as they come, and reads nothing but the last."""

    def __init__(self, stream: Stream, request: bytes) -> None:
        self._stream = stream
        self._request = request
        self._came: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None
        self._began = 0.0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    async def read(self) -> None:
        assert self._transport is not None
        self._began = time.perf_counter()
        self._transport.write(self._request)
        await self._done
        found = re.findall(rb'"completion_tokens":(\d+)', b"".join(self._came))
        if not found or self._stream.events == 0:
            raise RuntimeError(f"a stream failed: {b''.join(self._came)[-500:]!r}")
        self._stream.tokens = int(found[-1])

    def data_received(self, data: bytes) -> None:
        # Servers write an event at once: its beginning is not cut in two.
        events = data.count(_EVENT)
        if events and not self._stream.events:
            self._stream.first_s = time.perf_counter() - self._began
        self._stream.events += events
        self._came.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)


def _body(prompt: Sequence[int], max_tokens: int) -> bytes:
    return json.dumps(
        {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
