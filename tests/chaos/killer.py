"""The killer: kills and freezes the server's processes at moments drawn from a seed."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from random import Random

import psutil

from tests.chaos.faults import Fault, Kind
from tests.deployments.conftest import Server

_VICTIMS = {
    Kind.KILL_REPLICA: "Replica",
    Kind.KILL_ROUTER: "Router",
    Kind.KILL_GATEWAY: "Gateway",
    Kind.KILL_CONTROLLER: "ray::ServeController",
    Kind.KILL_HAPROXY: "haproxy",
    Kind.FREEZE_REPLICA: "Replica",
    Kind.FREEZE_ROUTER: "Router",
    Kind.FREEZE_GATEWAY: "Gateway",
}
_WEIGHTS = {
    Kind.KILL_REPLICA: 8,
    Kind.KILL_ROUTER: 4,
    Kind.KILL_GATEWAY: 6,
    Kind.KILL_CONTROLLER: 2,
    Kind.KILL_HAPROXY: 1,
    Kind.FREEZE_REPLICA: 6,
    Kind.FREEZE_ROUTER: 2,
    Kind.FREEZE_GATEWAY: 2,
}
FRONT_BACK_S = 25.0
"""What stands between clients and the router is whole again after so long; then more is done to it.

While there is no gateway at all, Serve's own proxy stands in; what that says when a gateway dies
under it is not the server's to choose. And nobody but the controller starts a gateway.
"""

LOOK_S = 0.05

_FRONT = (Kind.KILL_GATEWAY, Kind.FREEZE_GATEWAY, Kind.KILL_CONTROLLER, Kind.KILL_HAPROXY)
_KILLS = (Kind.KILL_REPLICA, Kind.KILL_ROUTER, Kind.KILL_GATEWAY)
_FREEZES = (Kind.FREEZE_REPLICA, Kind.FREEZE_ROUTER, Kind.FREEZE_GATEWAY)


class Killer:
    """Does one fault after the other, each after somebody was served since the last.

    So a slow machine gets as far as a fast one between two faults, and who hangs is not one for
    whom there was nobody to serve him.

    Args:
        server: the victim.
        rng: draws what, when, and to which process.
        gap_s: seconds between two faults, at least, and at most if somebody is served.
        freeze_s: seconds that a process is frozen, at least and at most.
        record: gets each fault.
        served: how many have been served so far.
    """

    def __init__(
        self,
        server: Server,
        rng: Random,
        gap_s: tuple[float, float],
        freeze_s: tuple[float, float],
        record: list[Fault],
        served: Callable[[], int],
    ) -> None:
        self._server = server
        self._rng = rng
        self._gap_s = gap_s
        self._freeze_s = freeze_s
        self._record = record
        self._served = served
        self._front_at = -FRONT_BACK_S
        # A short run, too, is to see one of each.
        self._due = [*rng.sample(list(_KILLS), len(_KILLS)), Kind.FREEZE_REPLICA]

    async def run(self, closing: float) -> None:
        """Go on until ``closing``, in seconds of the monotonic clock; then nothing is frozen."""
        async with asyncio.TaskGroup() as freezing:
            while True:
                before = self._served()
                await asyncio.sleep(self._rng.uniform(*self._gap_s))
                while self._served() == before and time.monotonic() < closing:
                    await asyncio.sleep(LOOK_S)
                if time.monotonic() > closing:
                    return
                # Two at once are a fault of their own kind.
                for _ in range(self._rng.choice((1, 1, 1, 2))):
                    await self._do_one(freezing)

    async def _do_one(self, freezing: asyncio.TaskGroup) -> None:
        # All is drawn whatever it is used for, so that the seed means the same everywhere.
        (kind,) = self._rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        kind = self._due.pop() if self._due else kind
        chance, seconds = self._rng.random(), self._rng.uniform(*self._freeze_s)
        found = await asyncio.to_thread(self._server.processes, _VICTIMS[kind])
        if not found or (kind in _FRONT and not self._front_is_whole()):
            return
        victim = found[int(chance * len(found))]
        if kind in _FREEZES:
            freezing.create_task(self._freeze(kind, victim, seconds))
        else:
            self._strike(kind, victim, signal.SIGKILL)

    def _front_is_whole(self) -> bool:
        now = time.monotonic()
        whole = now - self._front_at > FRONT_BACK_S
        self._front_at = now if whole else self._front_at
        return whole

    async def _freeze(self, kind: Kind, victim: psutil.Process, seconds: float) -> None:
        self._strike(kind, victim, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._strike(Kind.THAW, victim, signal.SIGCONT)

    def _strike(self, kind: Kind, victim: psutil.Process, blow: signal.Signals) -> None:
        self._record.append(Fault(time.monotonic(), kind, victim.pid))
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(blow)
