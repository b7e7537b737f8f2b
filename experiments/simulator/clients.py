"""Clients: who sends a load, comes back when told to, and notes what came of it."""

from collections.abc import Callable
from random import Random
from typing import Final

from deployments.messages import Refusal, RefusalKind
from experiments.loads.load import Load
from experiments.simulator.errand import Errand
from experiments.simulator.outcome import Outcome
from experiments.simulator.scenario import Scenario
from experiments.simulator.timeline import Timeline

_RETRIED: Final = frozenset(
    {
        RefusalKind.BUSY,
        RefusalKind.QUEUE_FULL,
        RefusalKind.NO_REPLICA,
        RefusalKind.TENANT_BUSY,
        RefusalKind.TENANT_RATE,
    }
)
_LEAST_RETRY_S: Final = 1.0  # a gateway says no less
_MOST_RETRY_S: Final = 60.0  # the OpenAI SDK obeys no longer one
_FIRST_BACKOFF_S: Final = 0.5  # what it does instead, doubling up to the next
_MOST_BACKOFF_S: Final = 8.0


class Clients:
    """All clients of a load.

    Attributes:
        outcomes: one for each request of the load, in its order.
        retried: times that one was sent again.
    """

    def __init__(
        self, scenario: Scenario, load: Load, timeline: Timeline, done: Callable[[], None]
    ) -> None:
        """Make ready to send a load.

        Args:
            scenario: what it is sent to.
            load: the requests.
            timeline: the time.
            done: called when all requests have come to something.
        """
        self._network_s = scenario.network_s
        self._retries = scenario.retries
        self._timeline = timeline
        self._done = done
        self._rng = Random(f"{scenario.seed} clients")
        self._arrivals = load.arrivals
        self._next = 0
        self._arrived: Callable[[Errand], None]
        self.retried = 0
        self.outcomes = [
            Outcome(index, one.at, one.priority, one.tenant, one.prompt_tokens)
            for index, one in enumerate(load.arrivals)
        ]
        self._open = len(self.outcomes)

    def begin(self, arrived: Callable[[Errand], None]) -> None:
        """Send the load, to a gateway that hears of each request as it comes."""
        self._arrived = arrived
        self._plan_next()

    def come_back(self, errand: Errand, refusal: Refusal) -> bool:
        """Send a request once more, if its client does; as the OpenAI SDK's retries do."""
        if errand.tries > self._retries or refusal.kind not in _RETRIED:
            return False
        pause_s = max(_LEAST_RETRY_S, refusal.retry_after)
        if not refusal.retry_after or pause_s > _MOST_RETRY_S:
            backoff_s = min(_FIRST_BACKOFF_S * 2 ** (errand.tries - 1), _MOST_BACKOFF_S)
            pause_s = backoff_s * (1 - 0.25 * self._rng.random())
        errand.tries += 1
        self.retried += 1
        there_and_back_s = 2 * self._network_s
        self._timeline.after(there_and_back_s + pause_s, self._arrived, errand)
        return True

    def close(self, errand: Errand) -> None:
        """Nothing more comes of a request."""
        errand.over = True
        self._open -= 1
        if not self._open:
            self._done()

    def _plan_next(self) -> None:
        """Plan when the next request of the load is to be sent."""
        if self._next < len(self._arrivals):
            self._timeline.at(self._arrivals[self._next].at, self._send)

    def _send(self, _: None) -> None:
        index = self._next
        self._next += 1
        errand = Errand(self._arrivals[index], self.outcomes[index])
        self._timeline.after(self._network_s, self._arrived, errand)
        self._plan_next()
