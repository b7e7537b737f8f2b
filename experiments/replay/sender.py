"""Sender: each request at its time, whatever became of those before."""

import asyncio
from typing import Final, Protocol

from experiments.loads.load import Arrival, Load
from experiments.replay.ahead import Ahead
from experiments.replay.clock import Clock
from experiments.simulator.outcome import Outcome

_LEISURE_S: Final = 0.02
"""Before a request is due, nothing is begun that takes time."""


class Client(Protocol):
    """Sends a request and waits for its answer."""

    async def send(self, index: int, arrival: Arrival, body: bytes) -> Outcome:
        """Return what came of a request; also if this is cancelled."""


class Sender:
    """Sends a load: an open loop, as users are who know nothing of each other.

    Args:
        load: what to send.
        client: sends one request.
        ahead: the requests' bodies.
        clock: of the load.

    Attributes:
        sent: requests so far.
    """

    def __init__(self, load: Load, client: Client, ahead: Ahead, clock: Clock) -> None:
        self._load = load
        self._client = client
        self._ahead = ahead
        self._clock = clock
        self._tasks: list[asyncio.Task[Outcome]] = []
        self._sending: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def sent(self) -> int:
        return len(self._tasks)

    async def run(self) -> list[Outcome]:
        """Send all and wait for all answers.

        Returns:
            An outcome for each request that was sent, in the load's order: all of them unless
            `stop` was called.
        """
        if not self._stopped:
            self._sending = asyncio.create_task(self._send_all())
            await asyncio.wait((self._sending,))
            if not self._sending.cancelled():
                self._sending.result()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return [self._outcome(index, task) for index, task in enumerate(self._tasks)]

    def stop(self) -> None:
        """Send no more; those under way go on."""
        self._stopped = True
        if self._sending is not None:
            self._sending.cancel()

    def cut(self) -> None:
        """Send no more, and give up those under way."""
        self.stop()
        for task in self._tasks:
            task.cancel()

    async def _send_all(self) -> None:
        for index, arrival in enumerate(self._load.arrivals):
            while self._clock.now() < arrival.at - _LEISURE_S and self._ahead.make_one():
                await asyncio.sleep(0)
            await self._clock.until(arrival.at)
            sending = self._client.send(index, arrival, self._ahead.take())
            self._tasks.append(asyncio.create_task(sending))

    def _outcome(self, index: int, task: asyncio.Task[Outcome]) -> Outcome:
        if not task.cancelled():
            return task.result()
        # It was given up before it had begun.
        one = self._load.arrivals[index]
        return Outcome(
            index, one.at, one.priority, one.tenant, one.prompt_tokens, reason="interrupted"
        )
