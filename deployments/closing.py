"""Closing: nothing new is accepted, and what was accepted has time to end."""

import asyncio
import contextlib
import csv
import socket
from pathlib import Path

POLL_S = 0.1
_ANSWER_S = 2.0


class Closing:
    """Closes the router and waits until the last request has ended.

    Attributes:
        left: requests that have not ended; None as long as nobody has said.
    """

    def __init__(self, proxy_folder: Path) -> None:
        """Prepare; ``proxy_folder`` is where HAProxy has its sockets, if there is one."""
        self.left: int | None = None
        self._stopped = False
        self._proxy_folder = proxy_folder

    def run(self) -> None:
        """Return when nothing is left, or when stopped; what goes wrong is tried again."""
        asyncio.run(self._run())

    def stop(self) -> None:
        """Let ``run`` return soon, in another thread."""
        self._stopped = True

    async def _run(self) -> None:
        while self.left != 0 and not self._stopped:
            with contextlib.suppress(Exception):
                # A request that moves, or whose end is being written, has no ticket any more.
                self.left = await _tickets() or open_requests(self._proxy_folder)
            await asyncio.sleep(POLL_S)


async def _tickets() -> int:
    """Close the router, and return how many requests it knows of."""
    from ray import serve

    from deployments.app import APP_NAME

    handle = serve.get_deployment_handle("Router", APP_NAME)
    router = handle.options(request_serialization="pickle", response_serialization="pickle")
    async with asyncio.timeout(_ANSWER_S):
        # Each time anew: it may be another router, which does not know that it is closed.
        await router.close.remote()
        tickets: int = await router.unfinished.remote()
    return tickets


def open_requests(proxy_folder: Path) -> int:
    """Return how many requests HAProxy is carrying; 0 without HAProxy.

    Raises:
        OSError: it does not answer.
    """
    return sum(_carried(path) for path in proxy_folder.glob("*/admin.sock"))


def _carried(path: Path) -> int:
    with socket.socket(socket.AF_UNIX) as admin:
        admin.settimeout(_ANSWER_S)
        admin.connect(str(path))
        # Of all proxies, the backends, the servers of each together.
        admin.sendall(b"show stat -1 2 -1\n")
        with admin.makefile(encoding="utf-8") as answer:
            return sum(int(backend["scur"]) for backend in csv.DictReader(answer))
