"""A replica's end of the stream to a gateway."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from deployments.guest import Guest, Methods
from deployments.lane import Lane
from deployments.messages import Batch, Event, Goodbye

_PARTING_S: Final = 5.0


class Outbox:
    """What one gateway has yet to be sent.

    It goes over the lane from that gateway once there is one, else into the stream. A gateway
    that reads slowly gets several steps in one message.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._wake = asyncio.Event()
        self._closed = False
        self._leaving = False
        self._lane: Lane | None = None
        self._parted = asyncio.Event()

    def attach(self, methods: Methods, lane: Lane) -> Guest:
        """Send over this lane from now on, and answer calls that come over it."""
        self._lane = lane
        if self._closed:
            self._end(lane)
        else:
            self.flush()
        return _Reader(self, methods, lane)

    def parted(self) -> None:
        """The lane has ended, and with it the stream."""
        self._parted.set()
        self.close()

    def put(self, event: Event) -> None:
        """Add an event; ``flush`` sends what was added."""
        self._events.append(event)

    def flush(self) -> None:
        """Send what was added since the last time as one message."""
        if self._lane is None:
            self._wake.set()
        elif not (self._closed or self._lane.full):
            self._send(self._lane)

    def close(self, *, leaving: bool = False) -> None:
        """End the stream when everything is sent, with a goodbye if the replica is to go."""
        if self._closed:
            return
        self._closed = True
        self._leaving = leaving
        self._wake.set()
        if self._lane is not None:
            self._end(self._lane)

    async def batches(self) -> AsyncIterator[Batch | Goodbye]:
        """Yield messages until the box is closed."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._events and self._lane is None:
                events, self._events = self._events, []
                yield tuple(events)
            if self._closed and self._lane is not None:
                if self._leaving:
                    await self._until_parted()
                return
            if self._closed and not self._events:
                if self._leaving:
                    yield Goodbye()
                return

    def _end(self, lane: Lane) -> None:
        self._send(lane)
        if self._leaving:
            lane.send(Goodbye())
        else:
            lane.close()

    def _send(self, lane: Lane) -> None:
        if self._events:
            events, self._events = self._events, []
            lane.send(tuple(events))

    async def _until_parted(self) -> None:
        """Let the gateway read to the goodbye: where the stream ends first, that is a loss."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PARTING_S):
                await self._parted.wait()


class _Reader(Guest):
    """The gateway that a box is for."""

    def __init__(self, box: Outbox, methods: Methods, lane: Lane) -> None:
        super().__init__(methods, lane)
        self._box = box

    def room(self) -> None:
        self._box.flush()

    def ended(self) -> None:
        super().ended()
        self._box.parted()
