"""Placement policies to compare ours with, each in a file of its own.

None of them is known to the router by a name: they are given as anyone's are
(docs/experiments/your-own-policy.md).
"""

from collections.abc import Mapping
from typing import Final

SPECS: Final[Mapping[str, str]] = {
    "round_robin": "experiments.policies.round_robin:RoundRobin",
    "least_requests": "experiments.policies.least_requests:LeastRequests",
    "power_of_two": "experiments.policies.power_of_two:PowerOfTwo",
}
"""What the setting ``placement`` is to be, by the short names that experiments use."""


def spec_of(name: str) -> str:
    """Return what the setting ``placement`` is to be for a short name; others are one already."""
    return SPECS.get(name, name)
