"""Order: the times of a trace, one after another."""

import math

from experiments.loads.errors import TraceError
from experiments.loads.rows import Row

# 17 days: what is later counts from 1970, in milliseconds or even in seconds that are taken for
# such, and not from the load's beginning.
_MOST_S = 1.5e6


class Order:
    """Checks that the rows of a trace are sorted by time, and none is out of reach."""

    def __init__(self) -> None:
        self._latest = -math.inf
        self._line = 0

    def next(self, row: Row, field: str, at: float) -> float:
        """Return the time of the next row, in seconds from the load's beginning.

        Args:
            row: whose time it is.
            field: where that stands.
            at: seconds.

        Raises:
            TraceError: it is below 0, far too late, or before that of the row before.
        """
        if at < self._latest:
            limit = f"no earlier than that of line {self._line}: a trace is sorted by time"
            raise row.error(field, limit)
        if not 0 <= at <= _MOST_S:
            raise row.error(field, f"from 0 to {_MOST_S:g} seconds from the load's beginning")
        self._latest, self._line = at, row.line
        return at


def at_least_one(path: str, count: int) -> None:
    """Check that a trace has requests.

    Raises:
        TraceError: it has none.
    """
    if not count:
        raise TraceError(path, None, "", "empty", "a trace with at least one request")
