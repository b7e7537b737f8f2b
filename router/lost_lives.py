"""LostLives: replicas that were lost, and which reports were still on their way when they were."""

from typing import Final

from router.report import Report

_REMEMBERED: Final = 1024


class LostLives:
    """The last reports of replicas that were lost, of the newest 1,024 of them."""

    __slots__ = ("_last_seq",)

    def __init__(self) -> None:
        """Start with nobody lost."""
        self._last_seq: dict[str, int] = {}  # oldest loss first

    def add(self, last: Report) -> None:
        """Remember a replica, which is lost now, by the newest report of it."""
        self._last_seq.pop(last.replica, None)
        self._last_seq[last.replica] = last.seq
        if len(self._last_seq) > _REMEMBERED:
            del self._last_seq[next(iter(self._last_seq))]

    def forget(self, replica: str) -> None:
        """Say that the replica is back, if it was lost."""
        self._last_seq.pop(replica, None)

    def sent(self, report: Report) -> bool:
        """Whether a report of an unknown replica was sent before the replica was lost.

        A replica that was lost by mistake comes back with a full report, which it is asked for.
        Anything else that bears the name of a lost replica was still on its way when it died.
        """
        seq = self._last_seq.get(report.replica)
        if seq is None:
            return False
        return report.held is None or report.seq <= seq
