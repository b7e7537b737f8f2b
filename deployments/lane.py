"""Lane: one end of a connection that carries messages in order, both ways.

What goes through a Serve handle costs half a millisecond at either end, whatever its size, and a
replica has something to say after each step. Here a message is one pickle behind its length, and
costs some twenty microseconds. Messages are unpickled, so each end shows a word that only the
other can know before anything else is read: see `deployments.doors`.
"""

import asyncio
import pickle
import socket
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

WORD_BYTES: Final = 32
_LENGTH_BYTES: Final = 8

_LOST_S: Final = 20
"""A machine that acknowledges nothing for so long is gone; frozen processes' machines do."""
_ALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _LOST_S),  # keepalive's, once data waits
)


class Peer(Protocol):
    """Hears what comes over a lane; all of it in turns of the event loop."""

    def came(self, message: Any) -> None:
        """A message has come."""

    def room(self) -> None:
        """Much waited to be sent, and no longer does."""

    def ended(self) -> None:
        """The connection has ended, whoever ended it; the last thing that is heard."""


class Lane(asyncio.Protocol):
    """One end. Closed by either, or by a network that fails: there is no telling which.

    Args:
        admit: given the other end's word, returns who is to hear it; None: it is a stranger.
    """

    def __init__(self, admit: Callable[["Lane", bytes], Peer | None]) -> None:
        self._admit = admit
        self._peer: Peer | None = None
        self._transport: asyncio.Transport | None = None
        self._came = bytearray()
        self._full = False

    @property
    def full(self) -> bool:
        """Whether the other end reads more slowly than this one sends: better wait for room."""
        return self._full

    def show(self, word: bytes) -> None:
        """Say who this is; before anything is sent."""
        if self._transport is not None:
            self._transport.write(word)

    def send(self, message: Any) -> None:
        """Send a message; it is lost if the connection has ended, or does before it arrives."""
        if self._transport is not None:
            data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
            self._transport.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data)

    def close(self) -> None:
        """End the connection after what was sent."""
        if self._transport is not None:
            self._transport.close()

    def drop(self) -> None:
        """End the connection at once; nothing more is heard."""
        self._peer = None
        self.turn_away()

    def turn_away(self) -> None:
        """End the connection unless the other end has said who it is."""
        if self._peer is None and self._transport is not None:
            self._transport.abort()

    # ---- called by the event loop -----------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No instance of that with uvloop, which Serve uses, but all that one is.
        self._transport = cast(asyncio.Transport, transport)
        # By itself a system finds out after a quarter of an hour that a machine has no power.
        if (end := transport.get_extra_info("socket")) is not None:
            for option in _ALIVE:
                end.setsockopt(*option)

    def data_received(self, data: bytes) -> None:
        came = self._came
        came += data
        if self._peer is None and not self._meet():
            return
        at = 0
        while len(came) - at >= _LENGTH_BYTES:
            begin = at + _LENGTH_BYTES
            end = begin + int.from_bytes(came[at:begin], "little")
            if len(came) < end:
                break
            with memoryview(came) as whole, whole[begin:end] as part:
                message = pickle.loads(part)
            at = end
            assert self._peer is not None
            self._peer.came(message)
        del came[:at]

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self._peer is not None:
            self._peer.room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.ended()

    def _meet(self) -> bool:
        """Read the other end's word; whether there is one, and it is known."""
        if len(self._came) < WORD_BYTES:
            return False
        word = bytes(self._came[:WORD_BYTES])
        del self._came[:WORD_BYTES]
        self._peer = self._admit(self, word)
        self.turn_away()
        return self._peer is not None
