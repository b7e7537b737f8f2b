"""HostBlocks: makes the copies that swapping asks for, and knows how fast they are."""

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Final

import torch

from engine.kv_pool import KVPool
from engine.swap import Copy

_TRIALS: Final = 5


class HostBlocks:
    """Host memory for whole blocks of a pool; pinned, so that a GPU copies at full speed.

    Attributes:
        seconds_per_block: what one copy of one block takes, measured when this was made.
    """

    def __init__(
        self, pool: KVPool, slots: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Take memory for ``slots`` blocks, >= 1, and measure; block 0 of the pool is in no use."""
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
