"""What must hold after every step, whatever happened; for tests and debug runs.

The check walks every block table, so it is not for the step loop of a server.
"""

from engine.blocks import PrefixCache, blocks_for
from engine.prefix_cache import BlockManager
from engine.scheduler import Scheduler
from engine.swap import SwapSpace


class InvariantBroken(Exception):
    """The scheduler's books do not add up; its message says where."""


def check_invariants(
    scheduler: Scheduler, cached_blocks: int = 0, shared: bool | None = None
) -> None:
    """Check that no block is lost or held twice and no request without room.

    Args:
        scheduler: between two calls.
        cached_blocks: blocks that are neither free nor in a table, kept for their content; a
            BlockManager counts those as free.
        shared: whether one block may stand in several tables; None: if there is a prefix cache.

    Raises:
        InvariantBroken: with what was found.
        BooksBroken: by a BlockManager.
    """
    blocks, stats = scheduler.blocks, scheduler.stats()
    if isinstance(blocks, BlockManager):
        blocks.audit()
    if shared is None:
        shared = isinstance(blocks, PrefixCache)
    held: set[int] = set()
    places = 0
    for id in scheduler.running():
        table = blocks.block_table(id)
        places += len(table)
        held.update(table)
        # The slot of the newest token is taken only when its step is planned.
        room = blocks_for(len(scheduler.tokens(id)) - 1, blocks.block_tokens)
        if len(table) < room:
            raise InvariantBroken(f"request {id} needs {room} blocks, has {len(table)}")
    if not shared and places != len(held):
        raise InvariantBroken(f"{places - len(held)} blocks are in more than one place")
    found = stats.free_blocks + len(held) + cached_blocks
    if found != stats.total_blocks:
        raise InvariantBroken(f"{found} of {stats.total_blocks} blocks are accounted for")
    if scheduler.swap is not None:
        _check_slots(scheduler, scheduler.swap)
    if stats.running > scheduler.config.max_seqs:
        raise InvariantBroken(f"{stats.running} run, the limit is {scheduler.config.max_seqs}")
    if stats.running + stats.waiting != scheduler.unfinished():
        raise InvariantBroken(f"{scheduler.unfinished()} requests, {stats}")


def _check_slots(scheduler: Scheduler, swap: SwapSpace) -> None:
    """Check that no slot is lost or held twice, and none by one that runs or has ended."""
    running, held = set(scheduler.running()), list[int]()
    for id in swap.holders():
        kept, tokens = swap.kept(id), len(scheduler.tokens(id))
        if id in running or kept > tokens:
            raise InvariantBroken(f"request {id} of {tokens} tokens has {kept} in host memory")
        if len(swap.slots(id)) != blocks_for(kept, scheduler.blocks.block_tokens):
            raise InvariantBroken(f"request {id} has {len(swap.slots(id))} slots for {kept} tokens")
        held += swap.slots(id)
    if len(set(held)) != len(held) or len(held) + swap.free_slots != swap.total_slots:
        raise InvariantBroken(
            f"{held} are held of {swap.total_slots} slots, {swap.free_slots} free"
        )
