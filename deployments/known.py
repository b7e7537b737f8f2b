"""Known: what replicas last said beside their reports."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from deployments.messages import ReplicaInfo, Vitals


@dataclass(frozen=True, slots=True)
class Known:
    """What a replica last said beside its report.

    Attributes:
        info: what it is.
        vitals: how it is.
        at: the router's clock when it said so, in seconds.
        leaving: it takes nothing new.
    """

    info: ReplicaInfo
    vitals: Vitals
    at: float
    leaving: bool

    def after(self, before: "Known") -> "Known":
        """Return it as what follows on what was said before.

        Of two reports, the one that was overtaken must not turn counters back.
        """
        return replace(self, vitals=self.vitals.no_less_than(before.vitals))


def smallest(replicas: Iterable[Known]) -> ReplicaInfo:
    """Return what replicas are; if they differ, the one with the fewest blocks."""
    return min((known.info for known in replicas), key=lambda info: info.total_blocks)
