"""The redeployer: changes settings and the number of replicas while all goes on."""

import asyncio
import time
from collections.abc import Mapping
from random import Random
from typing import Any

from tests.chaos.faults import Fault, Kind
from tests.deployments.conftest import Server
from tests.deployments.operate import deploy

LAST_S = 30.0
"""Nothing is begun so shortly before the end: it would not be done by then."""


class Redeployer:
    """Deploys anew, as ``serve deploy`` does, and does not wait for what comes of it.

    Args:
        server: what is deployed anew.
        settings: what it runs with.
        rng: draws what, and when.
        gap_s: seconds between two changes, at least and at most.
        record: gets each change.
    """

    def __init__(
        self,
        server: Server,
        settings: Mapping[str, Any],
        rng: Random,
        gap_s: tuple[float, float],
        record: list[Fault],
    ) -> None:
        self._server = server
        self._settings = dict(settings)
        self._rng = rng
        self._gap_s = gap_s
        self._record = record
        self._fewer = False

    async def run(self, closing: float) -> None:
        """Go on until ``closing``, in seconds of the monotonic clock, with all replicas then."""
        while True:
            await asyncio.sleep(self._rng.uniform(*self._gap_s))
            if time.monotonic() > closing - LAST_S:
                break
            if self._rng.random() < 0.4:
                # None that has to do with answers; every process is replaced for it.
                self._settings["aging_seconds"] += 1
                await self._deploy(Kind.REDEPLOY)
            else:
                self._fewer = not self._fewer
                await self._deploy(Kind.RESCALE)
        if self._fewer:
            self._fewer = False
            await self._deploy(Kind.RESCALE)

    async def _deploy(self, kind: Kind) -> None:
        self._record.append(Fault(time.monotonic(), kind, 0))
        replicas: int = self._settings["replicas"]
        await deploy(
            self._server, self._settings, replicas - 1 if self._fewer else replicas, wait=False
        )
