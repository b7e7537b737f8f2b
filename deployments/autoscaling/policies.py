"""How many replicas would do: one pure function for each thing that can be held to a target.

Each answers with a `Band`, not with a number: between "too few" and "too many" there is room
in which nothing should change, and only the policy knows how much.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from deployments.autoscaling.demand import Demand

MARGIN: Final = 0.1
"""A smaller fleet must hold this share more than the load, or the next ripple brings it back."""

GROWTH: Final = 2.0
"""A wait says that there are too few replicas, not how many: at most twice as many at once."""

# Shares of blocks are quotients: a load that fills exactly n replicas may come out a hair above.
_TOLERANCE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Band:
    """The numbers of replicas that would do, bounds not considered.

    Attributes:
        least: fewer are too few.
        most: more are too many; at least ``least``.
    """

    least: int
    most: int


class Settings(Protocol):
    """What the operator has set; see the settings of the same names."""

    @property
    def target_utilization(self) -> float: ...
    @property
    def target_wait_s(self) -> float: ...
    @property
    def target_ttft_s(self) -> float: ...
    @property
    def min_replicas(self) -> int: ...
    @property
    def max_replicas(self) -> int: ...


Policy: TypeAlias = Callable[[Demand, int, Settings], Band]
"""A policy of the operator's: of what the router knows, and of how many replicas there are meant
to be now, those that start included."""


def blocks(demand: Demand, target: int, utilization: float) -> Band:
    """Keep at most a share of the blocks, and of the seats, in use.

    Args:
        demand: what the router knows.
        target: replicas that there are meant to be now.
        utilization: the share, in (0, 1].
    """
    if _blind(demand):
        return _stay(demand, target)
    wanted = demand.load / utilization
    return Band(_whole(wanted), _whole(wanted * (1 + MARGIN)))


def wait(demand: Demand, target: int, limit_s: float, utilization: float) -> Band:
    """Let no request wait in the router for longer than ``limit_s``.

    With nobody waiting, one replica is too many if the others could carry the load at
    ``utilization``.
    """
    if _blind(demand):
        return _stay(demand, target)
    if demand.oldest_wait_s > limit_s:
        # Waits go on while a backlog melts; more replicas than it fills would not hurry it.
        useful = max(target + 1, _whole(demand.load))
        return _more(demand, target, demand.oldest_wait_s / limit_s, useful)
    if demand.queued == 0 and _rest_can_carry(demand, target, utilization):
        return Band(0, target - 1)
    return Band(0, target)


def ttft(demand: Demand, target: int, limit_s: float, utilization: float) -> Band:
    """Keep the recent 90th percentile of the time to first token below ``limit_s``.

    At less than half of it, one replica is too many if the others could carry the load at
    ``utilization``. Without recent data the oldest wait stands in: those that wait will have
    waited at least so long.
    """
    if _blind(demand):
        return _stay(demand, target)
    seen_s = demand.oldest_wait_s if demand.ttft_s is None else demand.ttft_s
    if seen_s > limit_s:
        # What a request takes alone on a replica, it takes on any number of them.
        return _more(demand, target, seen_s / limit_s, demand.requests)
    if seen_s < limit_s / 2 and _rest_can_carry(demand, target, utilization):
        return Band(0, target - 1)
    return Band(0, target)


def _blind(demand: Demand) -> bool:
    """Whether no replica shows how much one holds."""
    return demand.replicas == 0 or demand.total_blocks == 0


def _stay(demand: Demand, target: int) -> Band:
    least = 1 if demand.queued else 0
    return Band(least, max(least, target))


def _more(demand: Demand, target: int, ratio: float, useful: int) -> Band:
    """Grow in proportion, but not beyond what is of use, nor before the last growth serves."""
    if demand.replicas < target or useful <= target:
        return Band(0, target)
    wanted = min(_whole(target * min(ratio, GROWTH)), useful)
    return Band(wanted, wanted)


def _rest_can_carry(demand: Demand, target: int, utilization: float) -> bool:
    return _whole(demand.load / utilization * (1 + MARGIN)) < target


def _whole(replicas: float) -> int:
    return math.ceil(replicas - _TOLERANCE)
