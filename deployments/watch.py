"""Waiting for Ray without being at its mercy: when it dies, a call into it may never return.

Nor can a signal interrupt a call that waits inside Ray's C++; so such calls are made on other
threads, and the main thread watches.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait

import psutil

from deployments import processes
from deployments.failures import RayDied

WATCH_S = 0.5


class Watch:
    """Runs calls on threads of their own and waits for them while certain processes live."""

    def __init__(self, vital: Sequence[psutil.Process]) -> None:
        """Watch over these processes."""
        self._vital = [(process, process.name()) for process in vital]
        self._calls: list[Future[None]] = []

    def call(self, action: Callable[[], object]) -> "Future[None]":
        """Run ``action`` on a thread of its own, which ends with this process at the latest."""
        future: Future[None] = Future()

        def run() -> None:
            try:
                action()
                future.set_result(None)
            except BaseException as error:
                future.set_exception(error)

        self._calls.append(future)
        threading.Thread(target=run, daemon=True).start()
        return future

    def wait(self, call: "Future[None]", limit_s: float = math.inf) -> bool:
        """Wait for a call, for ``limit_s`` seconds at most; return whether it has ended.

        Raises:
            RayDied: a process has ended; the call need not be waited for any more.
            Exception: what the call raises.
        """
        deadline = time.monotonic() + limit_s
        while not call.done():
            for process, name in self._vital:
                if processes.has_ended(process):
                    raise RayDied(process.pid, name)
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            wait([call], min(WATCH_S, left))
        call.result()
        return True

    def run(self, action: Callable[[], object]) -> None:
        """Run ``action`` on a thread of its own and wait for it, as ``wait`` does."""
        self.wait(self.call(action))

    def settled(self, limit_s: float) -> bool:
        """Whether all calls return within ``limit_s`` seconds."""
        return not wait(self._calls, limit_s).not_done


def within(seconds: float, action: Callable[[], object]) -> bool:
    """Run ``action``, but wait for it for ``seconds`` at most; return whether it ended."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()
