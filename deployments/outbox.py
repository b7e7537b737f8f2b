"""A replica's end of the stream to a gateway."""

import asyncio
from collections.abc import AsyncIterator

from deployments.messages import Batch, Event, Goodbye


class Outbox:
    """What one gateway has yet to be sent.

    A gateway that reads slowly gets several steps in one message.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._wake = asyncio.Event()
        self._closed = False
        self._leaving = False

    def put(self, event: Event) -> None:
        """Add an event; ``flush`` sends what was added."""
        self._events.append(event)

    def flush(self) -> None:
        """Send what was added since the last time as one message."""
        self._wake.set()

    def close(self, *, leaving: bool = False) -> None:
        """End the stream when everything is sent, with a goodbye if the replica is to go."""
        self._closed = True
        self._leaving = leaving
        self._wake.set()

    async def batches(self) -> AsyncIterator[Batch | Goodbye]:
        """Yield messages until the box is closed."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._events:
                events, self._events = self._events, []
                yield tuple(events)
            if self._closed and not self._events:
                if self._leaving:
                    yield Goodbye()
                return
