"""Passing: by how much a later request was let go first."""

from collections.abc import Sequence

from experiments.simulator.outcome import Outcome


def longest_passed_s(outcomes: Sequence[Outcome], low: int, high: int) -> float | None:
    """Return by how much the latest that passed had come later, in seconds.

    A request of priority ``high`` passes one of priority ``low`` that came before it if it is
    placed on a replica first.

    Args:
        outcomes: in any order; those that were never placed count as placed last.
        low, high: the two priorities.

    Returns:
        The largest difference of arrivals, 0 if nobody passed; None if no request is of ``low``.
    """
    never = float("inf")
    order = sorted(
        (never if one.placed_at is None else one.placed_at, one.priority == high, one.at)
        for one in outcomes
        if one.priority in (low, high)
    )
    latest, longest, some = -never, 0.0, False
    for placed_at, passes, at in order:
        if not passes:
            some = True
            longest = max(longest, latest - at)
        elif placed_at < never:
            latest = max(latest, at)
    return longest if some else None
