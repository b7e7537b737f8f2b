"""Who makes way for a newcomer that is more urgent by some levels of priority.

The choice has no side effects, so that nobody is preempted in vain: all victims are known,
and known to be enough, before the first one loses its place.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import takewhile

from engine.blocks import BlockSpace, blocks_for
from engine.plan import RequestState
from engine.rank import SchedPolicy
from engine.scheduler_config import SchedulerConfig


def choose_victims(
    newcomer: RequestState,
    running: Sequence[RequestState],
    blocks: BlockSpace,
    config: SchedulerConfig,
    shared: Collection[int] = (),
    kept_seats: int = 0,
    kept_blocks: int = 0,
) -> list[RequestState]:
    """Return the fewest running requests whose seats and blocks let a newcomer in.

    They are the tail of the running list, since nobody is preempted while one that ranks
    lower runs on: a tail that may not be preempted protects all before it.

    Args:
        newcomer: the head of the waiting queue.
        running: highest rank first, at most ``config.max_seqs`` of them.
        blocks: the memory that they hold.
        config: the levels, and how often one request makes way.
        shared: blocks in ``running``'s tables that the newcomer would share.
        kept_seats, kept_blocks: those that are free, but not for the newcomer; with
            ``running`` there are no more seats than ``config.max_seqs``.

    Returns:
        The victims, lowest rank first. Nobody if the newcomer lacks neither a seat nor
        blocks, if all that may be preempted would not be enough, or under FCFS.
    """
    if config.admission_preemption == 0 or config.policy is SchedPolicy.FCFS:
        return []
    needed = blocks_for(len(newcomer.tokens), blocks.block_tokens) - len(shared)
    lacking = needed - (blocks.free_blocks - kept_blocks)
    if lacking <= 0:
        full = len(running) + kept_seats >= config.max_seqs
        return [running[-1]] if full and _yields(running[-1], newcomer, config) else []
    tail = list(takewhile(lambda state: _yields(state, newcomer, config), reversed(running)))
    # Most often it is clear without looking at single blocks that they are not enough.
    if sum(len(blocks.block_table(state.id)) for state in tail) < lacking:
        return []
    # A block that several tables share comes free with the last of them, and is no gain if
    # the newcomer takes it over.
    kept, holders = frozenset(shared), Counter[int]()
    for state in running:
        holders.update(blocks.block_table(state.id))
    for count, state in enumerate(tail, start=1):
        table = blocks.block_table(state.id)
        holders.subtract(table)
        lacking -= sum(holders[block] == 0 and block not in kept for block in table)
        if lacking <= 0:
            return tail[:count]
    return []


def _yields(state: RequestState, newcomer: RequestState, config: SchedulerConfig) -> bool:
    """Whether a running request may be preempted for a newcomer.

    The levels compare priorities as they were given, the rank counts the waiting too: one
    that ranked before the newcomer would come back and take the place again.
    """
    return (
        newcomer.priority - state.priority >= config.admission_preemption
        and newcomer.rank < state.rank
        and state.admission_preemptions < config.max_admission_preemptions
    )
