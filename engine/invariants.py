"""What must hold after every step, whatever happened; for tests and debug runs.

The check walks every block table, so it is not for the step loop of a server.
"""

from engine.blocks import PrefixCache, blocks_for
from engine.prefix_cache import BlockManager
from engine.scheduler import Scheduler


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
    if stats.running > scheduler.config.max_seqs:
        raise InvariantBroken(f"{stats.running} run, the limit is {scheduler.config.max_seqs}")
    if stats.running + stats.waiting != scheduler.unfinished():
        raise InvariantBroken(f"{scheduler.unfinished()} requests, {stats}")
