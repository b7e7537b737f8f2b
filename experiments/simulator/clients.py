"""Clients: who sends a load, comes back when told to, and notes what came of it."""

from collections.abc import Callable
from random import Random

from deployments.openai.errors import ApiError
from experiments.loads.load import Load
from experiments.replay.retry import Retry
from experiments.simulator.errand import Errand
from experiments.simulator.outcome import Outcome
from experiments.simulator.scenario import Scenario
from experiments.simulator.timeline import Timeline


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
        self._timeline = timeline
        self._done = done
        self._retry = Retry(scenario.retries, Random(f"{scenario.seed} clients"))
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

    def come_back(self, errand: Errand, told: ApiError) -> bool:
        """Send a request once more, if its client does: by the rule of a replay's clients."""
        headers = {name.lower(): value for name, value in told.headers().items()}
        pause_s = self._retry.wait_s(errand.tries, told.status, headers)
        if pause_s is None:
            return False
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
