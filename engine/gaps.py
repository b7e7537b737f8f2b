"""Which request may fill a gap that the head of the queue is too large for.

The choice has no side effects. Whoever ranks before the one that is chosen is passed by
it, and nobody may be passed more often than the limit says: so the highest-ranked of
those who wait is not starved by smaller ones, and nor is any other.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final

from engine.plan import RequestState
from engine.rank import SchedPolicy
from engine.scheduler_config import SchedulerConfig

WINDOW: Final = 16
"""Waiting requests that are looked at, the head included: what a step may spend on it."""


def choose_filler(
    waiting: Sequence[RequestState],
    fits: Callable[[RequestState], bool],
    size: Callable[[RequestState], int],
    config: SchedulerConfig,
) -> RequestState | None:
    """Return the waiting request that fills a gap best, None if nobody may or can.

    That is the one of most blocks, so that least is left over; but nobody may pass one
    of higher priority that would fit as well.

    Args:
        waiting: the first of the queue in rank order. The head cannot start.
        fits: whether a request could start now.
        size: its blocks.
        config: the limit, and whether there are priorities.
    """
    fitting = [state for state in _may_pass(waiting, config.max_passes) if fits(state)]
    if config.policy is SchedPolicy.PRIORITY:
        fitting = _of_no_lower_priority(fitting)
    return max(fitting, key=size, default=None)  # the first of equals, which ranks highest


def _of_no_lower_priority(fitting: Iterable[RequestState]) -> list[RequestState]:
    """Those before whom none of higher priority ranks, in rank order."""
    kept: list[RequestState] = []
    for state in fitting:
        # The priorities of those that are kept never fall.
        if not kept or state.priority >= kept[-1].priority:
            kept.append(state)
    return kept


def _may_pass(waiting: Sequence[RequestState], limit: int) -> Iterable[RequestState]:
    """Those behind the head before whom nobody has been passed as often as may be."""
    for before, state in pairwise(waiting):
        if before.passed >= limit:
            return
        yield state
