"""What a server takes besides its steps, measured by loads that are made for it."""

import statistics
from collections.abc import Sequence
from typing import Final

from experiments.loads.load import Arrival, Load
from experiments.simulator.outcome import Outcome
from experiments.simulator.step_time import StepTime

PROMPT: Final = 16
WARM_UP, COUNT = 10, 20
BURSTS, BURST_S, EACH = 5, 4.0, 6
"""Requests of one burst on each replica, and how often they come, while it is measured how replicas
crowd each other. Half of the time goes into prompts, half into answers."""
BURST_PROMPT, BURST_OUTPUT = 192, 64
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


def bursts(replicas: int) -> Load:
    """Return requests that keep all replicas computing, again and again, each time from nothing."""
    at = [BURST_S * burst for burst in range(BURSTS) for _ in range(EACH * replicas)]
    return Load("bursts", [Arrival(when, BURST_PROMPT, BURST_OUTPUT) for when in at])


def crowding(measured: Sequence[Outcome], simulated: Sequence[Outcome]) -> float:
    """Return `Scenario.crowding`: how much longer answers took than simulated without it, >= 1.

    Args:
        measured, simulated: of `bursts`.

    Raises:
        ValueError: none was answered.
    """
    real, alone = (
        [one.last_token_at - one.at for one in outcomes if one.last_token_at is not None]
        for outcomes in (measured, simulated)
    )
    if not real or not alone:
        raise ValueError("no request was answered")
    return max(1.0, statistics.median(real) / statistics.median(alone))
