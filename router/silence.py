"""Silence: how long each replica has said nothing while the router was awake to hear it."""

from collections import OrderedDict

# A tick comes about every second. A gap as long as this between two of them means that the
# router itself did not run (suspended, starved), and so says nothing about the replicas.
_NAP_S = 5.0
_SHORTEST_NAP_S = 2.0


class Silence:
    """Silences, in seconds of the router's clock less the time for which the router slept.

    A nap is a gap of 5 s between two ticks; of a third of ``lost_after_s`` where that is less,
    but never of less than 2 s. Who was already overdue before it stays so; all silences are
    counted anew from its end. An owner that never ticks has no naps.

    Invariant: every replica that was heard and not forgotten is in ``_fresh``, which is in the
    order in which they were last heard, or in ``_overdue``.
    """

    __slots__ = ("_fresh", "_lost_after_s", "_nap_s", "_overdue", "_suspect_after_s", "_ticked")

    def __init__(self, suspect_after_s: float, lost_after_s: float) -> None:
        """Watch nobody yet.

        Args:
            suspect_after_s: who is silent for longer is overdue.
            lost_after_s: who is silent for so long is called silent.
        """
        self._suspect_after_s = suspect_after_s
        self._lost_after_s = lost_after_s
        self._nap_s = min(_NAP_S, max(_SHORTEST_NAP_S, lost_after_s / 3))
        self._fresh: OrderedDict[str, float] = OrderedDict()
        self._overdue: dict[str, float] = {}
        self._ticked: float | None = None

    def heard(self, replica: str, now: float) -> None:
        """Note news of a replica, which begins to be watched if it was not."""
        self._overdue.pop(replica, None)
        self._fresh[replica] = now
        self._fresh.move_to_end(replica)

    def forget(self, replica: str) -> None:
        """Watch a replica no more."""
        self._overdue.pop(replica, None)
        self._fresh.pop(replica, None)

    def tick(self, now: float) -> None:
        """Say that the router is awake; to be called about once a second, after `overdue`."""
        self._ticked = now

    def overdue(self, now: float) -> list[str]:
        """The replicas that have become overdue since the last call; O(1) for each of them.

        To be called before anything else in a turn: it is also what notices a nap.
        """
        if self._ticked is not None and now - self._ticked > self._nap_s:
            self._wake(now)
        late: list[str] = []
        while self._fresh:
            replica, since = next(iter(self._fresh.items()))
            if now - since <= self._suspect_after_s:
                break
            del self._fresh[replica]
            self._overdue[replica] = since
            late.append(replica)
        return late

    def silent(self, now: float) -> tuple[str, ...]:
        """The replicas that have been silent for ``lost_after_s``, the overdue first; O(n)."""
        everyone = (*self._overdue.items(), *self._fresh.items())
        return tuple(name for name, since in everyone if now - since >= self._lost_after_s)

    def _wake(self, now: float) -> None:
        self._ticked = now
        for watched in (self._fresh, self._overdue):
            for replica in watched:
                watched[replica] = now
