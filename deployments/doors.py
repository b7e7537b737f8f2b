"""Doors: where other processes reach this one without Serve, each with a word of its own.

Words are told through Serve, so whoever shows one is who it was told to. A door is no more than
a shorter way: where it cannot be reached, or TLS is wanted, all goes through Serve.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from deployments.lane import WORD_BYTES, Lane, Peer

CONNECT_S: Final = 1.0
"""A machine that answers does so at once; one behind a wall never does."""

_STRANGER_S: Final = 5.0

Meet: TypeAlias = Callable[[Lane], Peer]
"""Told of a lane whose other end is known, returns who is to hear it."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Door:
    """Where a process waits for one other.

    Attributes:
        host, port: of its socket.
        word: what the other has to show.
        answer: what it is shown.
    """

    host: str
    port: int
    word: bytes = field(repr=False)
    answer: bytes = field(repr=False)


class Doors:
    """A socket for those who are expected. Opens in a task of its own; use ``close``.

    Args:
        host: the address of this machine that others reach it by.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._expected: dict[bytes, tuple[bytes, Meet]] = {}
        self._server: asyncio.Server | None = None
        self._opening = asyncio.get_running_loop().create_task(self._open())

    @contextmanager
    def expect(self, meet: Meet) -> Iterator[Door | None]:
        """Let one in, once, for as long as the context lasts; None if nobody can come.

        Args:
            meet: called when it has come.
        """
        if self._server is None:
            yield None
            return
        word, answer = secrets.token_bytes(WORD_BYTES), secrets.token_bytes(WORD_BYTES)
        self._expected[word] = answer, meet
        try:
            yield Door(self._host, self._server.sockets[0].getsockname()[1], word, answer)
        finally:
            self._expected.pop(word, None)

    async def opened(self) -> None:
        """Wait until it is known whether anybody can come."""
        await asyncio.wait([self._opening])

    def close(self) -> None:
        """Let nobody in any more; who is in stays."""
        self._opening.cancel()
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _open(self) -> None:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return  # a socket of our own would not be encrypted
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listener = socket.create_server((self._host, 0), family=family)
        except OSError as error:
            logger.warning("no sockets at %s, tokens go through Serve: %s", self._host, error)
            return
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._knocked, sock=listener)
        except BaseException:
            listener.close()
            raise

    def _knocked(self) -> Lane:
        lane = Lane(self._admit)
        asyncio.get_running_loop().call_later(_STRANGER_S, lane.turn_away)
        return lane

    def _admit(self, lane: Lane, word: bytes) -> Peer | None:
        if (expected := self._expected.pop(word, None)) is None:
            return None
        answer, meet = expected
        lane.show(answer)
        return meet(lane)


async def enter(door: Door, peer: Peer) -> Lane | None:
    """Connect to who waits there; None if that cannot be done, and then ``peer`` hears nothing.

    Args:
        door: that was told.
        peer: hears what comes.
    """
    loop = asyncio.get_running_loop()
    met: asyncio.Future[None] = loop.create_future()

    def admit(_: Lane, word: bytes) -> Peer | None:
        if word != door.answer or met.done():
            return None
        met.set_result(None)
        return peer

    lane = Lane(admit)
    try:
        async with asyncio.timeout(CONNECT_S):
            await loop.create_connection(lambda: lane, door.host, door.port)
            lane.show(door.word)
            await met
    except (OSError, TimeoutError) as error:
        where = f"{door.host}:{door.port}"
        logger.warning("no way to %s, tokens come through Serve: %r", where, error)
        lane.drop()
        return None
    finally:
        lane.turn_away()
    return lane
