"""engine.host_blocks: copies are made in their order, and what one takes is measured."""

import itertools

import pytest
import torch

from engine.host_blocks import HostBlocks, host_blocks
from engine.kv_pool import KVPool, KVShape
from engine.request import InvalidParam
from engine.swap import Copy

SHAPE = KVShape(layers=2, kv_heads=1, head_dim=4, dtype=torch.float32)


def filled(pool: KVPool) -> list[float]:
    """The value that each block is filled with, the same in all its places."""
    found = []
    for block in range(pool.num_blocks):
        reads = [pool.read(layer, torch.tensor([[block]]), 2) for layer in range(2)]
        values = {float(x) for pair in reads for side in pair for x in side.flatten()}
        assert len(values) == 1
        found += values
    return found


def fill(pool: KVPool, block: int, value: float) -> None:
    rows = torch.full((2, 1, 4), value)
    for layer in range(2):
        pool.write(layer, torch.tensor([2 * block, 2 * block + 1]), rows, rows)


def test_a_slot_that_was_read_may_be_written_by_the_next_copy() -> None:
    """Fault: all copies out are made first, and one overwrites what another was to bring back."""
    pool = KVPool(SHAPE, num_blocks=4, block_tokens=2, device=torch.device("cpu"))
    host = HostBlocks(pool, slots=2)
    for block in range(4):
        fill(pool, block, block + 1.0)
    host.make([Copy(True, (0, 1), (1, 0))])
    fill(pool, 0, 9.0)
    host.make([Copy(False, (3, 2), (1, 0)), Copy(True, (0,), (1,)), Copy(False, (1,), (1,))])
    assert filled(pool) == [9.0, 9.0, 2.0, 1.0]


def test_the_time_of_a_copy_is_half_of_there_and_back() -> None:
    pool = KVPool(SHAPE, num_blocks=4, block_tokens=2, device=torch.device("cpu"))
    host = HostBlocks(pool, slots=1, clock=itertools.count(step=3).__next__)
    assert host.seconds_per_block == 1.5
    assert filled(pool) == [0.0] * 4


@pytest.mark.parametrize(("blocks", "fits"), [(0.5, False), (1, True), (6, True), (7, False)])
def test_host_memory_is_what_the_pool_leaves(
    monkeypatch: pytest.MonkeyPatch, blocks: float, fits: bool
) -> None:
    """Fault: a pool and what it swaps to are more together than there is memory."""
    pool = KVPool(SHAPE, num_blocks=4, block_tokens=2, device=torch.device("cpu"))
    block_bytes = SHAPE.bytes_per_token * 2
    monkeypatch.setattr("engine.host_blocks.free_bytes", lambda device: 10 * block_bytes)
    gib = blocks * block_bytes / 2**30
    if fits:
        assert host_blocks(gib, pool).slots == blocks
    else:
        with pytest.raises(InvalidParam, match="swap_gib"):
            host_blocks(gib, pool)
