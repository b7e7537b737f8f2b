"""Settling: the time after a start in which the router listens and places nothing."""

from router.ledger import Ledger


class Settling:
    """Whether a router that has just started knows enough of the replicas to place.

    A new router has no grants: what its predecessor placed, and what runs, it learns from the
    replicas' full reports. If it placed on the word of the first of them, all that waits would
    go to that one. So it waits until as many have reported in full as are expected, but no
    longer than ``settle_s`` after the first report of any.
    """

    __slots__ = ("_first_at", "_on", "_settle_s")

    def __init__(self, settle_s: float) -> None:
        """Begin to settle, unless ``settle_s`` is 0; seconds."""
        self._settle_s = settle_s
        self._on = settle_s > 0
        self._first_at: float | None = None  # when the first report of any replica came

    @property
    def on(self) -> bool:
        """Whether nothing may be placed yet; once False, False for ever."""
        return self._on

    def ends(self, now: float, ledger: Ledger, expecting: int) -> bool:
        """Whether it ends in this moment; to be called in every turn while it is on.

        Args:
            now: the router's clock, in seconds.
            ledger: says who has reported, and who in full.
            expecting: replicas that are meant to be there, 0 if nobody has said.
        """
        if self._first_at is None and len(ledger):
            self._first_at = now
        all_heard = 0 < expecting <= ledger.complete
        late = self._first_at is not None and now - self._first_at >= self._settle_s
        self._on = not (all_heard or late)
        return not self._on
