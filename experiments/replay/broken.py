"""What went wrong with a connection, in few words of which there are few kinds."""

import errno
from typing import Final

import aiohttp

from experiments.replay.refusal import Refusal

_KINDS: Final = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset",
    errno.EPIPE: "connection reset",
    errno.EMFILE: "no file descriptor",
    errno.ENFILE: "no file descriptor",
}
_ERRORS: Final = (
    (aiohttp.ServerTimeoutError, "connection timeout"),
    (aiohttp.ServerDisconnectedError, "connection closed"),
    (aiohttp.ClientPayloadError, "stream cut"),
    (aiohttp.ClientResponseError, "not HTTP"),
    (aiohttp.ClientConnectorCertificateError, "certificate not trusted"),
    (aiohttp.ClientSSLError, "no TLS"),
    (aiohttp.ClientConnectorError, "no connection"),
)


def broken(error: Exception) -> Refusal:
    """Return what is said of a request whose connection failed so."""
    number = getattr(error, "errno", None)
    kind = next((kind for known, kind in _ERRORS if isinstance(error, known)), "connection lost")
    return Refusal(_KINDS.get(number or 0, kind), f"{type(error).__name__}: {error}"[:500])
