"""Rank: the one ordering of requests, shared by the engine and the router.

Every queue, the order of decodes and the choice of a preemption victim compare
requests by the same key, fixed when a request is added, so no two parts of the
system can disagree about who goes first.

The key ages linearly: a request of priority ``P`` that arrived at ``a`` ranks by
``P * aging - a``.  One level of priority is worth ``aging`` ticks of waiting, so a
priority-0 request outranks every priority-P request that arrives more than
``P * aging`` ticks after it: the wait is bounded, nobody starves.
"""

from enum import StrEnum
from typing import NamedTuple


class SchedPolicy(StrEnum):
    """How requests are ordered: by arrival alone, or by priority with aging."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class Rank(NamedTuple):
    """A sort key; the smallest rank goes first.

    Attributes:
        urgency: ``-(priority * aging - arrival)`` under PRIORITY, 0 under FCFS.
        arrival: the tick of first arrival; never changes, also not on preemption.
        serial: breaks ties, unique within one queue.
    """

    urgency: int
    arrival: int
    serial: int


def rank_of(policy: SchedPolicy, aging: int, priority: int, arrival: int, serial: int) -> Rank:
    """Return the rank of a request.

    Args:
        policy: FCFS ignores ``priority``.
        aging: ticks of waiting that one level of priority is worth, >= 0.
        priority: higher is more urgent.
        arrival: tick of first arrival, in the same unit as ``aging``.
        serial: tie-breaker, e.g. the request id.
    """
    urgency = arrival - priority * aging if policy is SchedPolicy.PRIORITY else 0
    return Rank(urgency, arrival, serial)
