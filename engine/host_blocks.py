"""HostBlocks: makes the copies that swapping asks for, and knows how fast they are."""

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Final

import torch

from engine.kv_pool import KVPool
from engine.memory import free_bytes
from engine.request import require
from engine.step_times import StepTimes
from engine.swap import Copy, SwapCost, SwapSpace

_TRIALS: Final = 5


class HostBlocks:
    """Host memory for whole blocks of a pool; pinned, so that a GPU copies at full speed.

    Attributes:
        slots: blocks that it holds.
        seconds_per_block: what one copy of one block takes, measured when this was made.
    """

    def __init__(
        self, pool: KVPool, slots: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Take memory for ``slots`` blocks, >= 1, and measure; block 0 of the pool is in no use."""
        self.slots = slots
        self._pool = pool
        self._host = pool.host_blocks(slots)
        self.seconds_per_block = statistics.median(self._time(clock) for _ in range(_TRIALS))

    def make(self, copies: Iterable[Copy]) -> None:
        """Make copies in their order, before anything else reads or writes those blocks."""
        for copy in copies:
            if copy.out:
                self._pool.copy_out(copy.blocks, self._host, copy.slots)
            else:
                self._pool.copy_in(self._host, copy.slots, copy.blocks)

    def _time(self, clock: Callable[[], float]) -> float:
        self._wait()
        begin = clock()
        self.make((Copy(True, (0,), (0,)), Copy(False, (0,), (0,))))
        self._wait()
        return (clock() - begin) / 2

    def _wait(self) -> None:
        if self._pool.device.type == "cuda":
            torch.cuda.synchronize(self._pool.device)


def host_blocks(gib: float, pool: KVPool) -> HostBlocks:
    """Return ``gib`` GiB of host memory for blocks of a pool, which may lie there too.

    Raises:
        InvalidParam: that holds no block, or is more than there is.
    """
    block_bytes = pool.shape.bytes_per_token * pool.block_tokens
    asked, host = int(gib * 2**30), torch.device("cpu")
    room = free_bytes(host)
    if pool.device == host:
        room -= pool.num_blocks * block_bytes
    limit = f"from {block_bytes / 2**30:.3g} (a block) to {room / 2**30:.3g}, which memory holds"
    require(block_bytes <= asked <= room, "swap_gib", gib, limit)
    return HostBlocks(pool, asked // block_bytes)


def swap_space(host: HostBlocks, block_tokens: int, times: StepTimes) -> SwapSpace:
    """Return the books of host memory, which is used where copying is cheaper."""
    cost = SwapCost(host.seconds_per_block, block_tokens, times)
    return SwapSpace(host.slots, block_tokens, cost)
