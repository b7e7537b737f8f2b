"""What a request takes besides its steps, measured on a server that has nothing else to do."""

import statistics
from collections.abc import Sequence
from typing import Final

from experiments.loads.load import Arrival, Load
from experiments.simulator.outcome import Outcome
from experiments.simulator.step_time import StepTime

PROMPT: Final = 16
WARM_UP, COUNT = 10, 20
PERIOD_S: Final = 0.35
WAYS: Final = 6
"""Messages between a client's sending and its first token, one after the other: to the gateway,
to the router and back, to the replica, and back through the gateway."""


def lone_requests() -> Load:
    """Return short requests so far apart that none meets another; the first are to warm up."""
    arrivals = [Arrival(PERIOD_S * i, PROMPT, 1) for i in range(WARM_UP + COUNT)]
    return Load("one at a time", arrivals)


def gateway_s(outcomes: Sequence[Outcome], step_time: StepTime, network_s: float) -> float:
    """Return `Scenario.gateway_s`: what is left of their time to the first token, >= 0.

    Args:
        outcomes: of `lone_requests`.
        step_time: of the one step that each takes.
        network_s: as in `Scenario`.

    Raises:
        ValueError: none was answered.
    """
    times = [one.ttft_s for one in outcomes[WARM_UP:] if one.ttft_s is not None]
    if not times:
        raise ValueError("no request was answered")
    step_s = step_time.seconds(PROMPT, PROMPT * (PROMPT + 1) // 2, 0, 0)
    return max(0.0, statistics.median(times) - step_s - WAYS * network_s)
