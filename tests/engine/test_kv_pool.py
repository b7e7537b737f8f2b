"""engine.kv_pool: what is written is read back, and padding reads zeros."""

import torch

from engine.kv_pool import KVPool, KVShape

SHAPE = KVShape(layers=2, kv_heads=3, head_dim=4, dtype=torch.bfloat16)


def test_rows_come_back_from_the_blocks_they_were_written_to() -> None:
    pool = KVPool(SHAPE, num_blocks=5, block_tokens=4, device=torch.device("cpu"))
    keys, values = torch.randn(2, 3, 3, 4).to(torch.bfloat16)
    pool.write(1, torch.tensor([19, 0, 7]), keys, values)
    got_keys, got_values = pool.read(1, torch.tensor([[4, 1], [0, 5]]), 8)
    assert torch.equal(got_keys[0, [3, 7]], keys[[0, 2]].float())
    assert torch.equal(got_values[1, 0], values[1].float())
    assert not got_keys[1, 1:].any()
    assert not pool.read(0, torch.arange(5)[None], 20)[0].any(), "another layer was written"


def test_the_null_block_is_zero_after_every_block_was_filled() -> None:
    pool = KVPool(SHAPE, num_blocks=5, block_tokens=4, device=torch.device("cpu"))
    filled = torch.full((20, 3, 4), float("nan"), dtype=torch.bfloat16)
    pool.write(0, torch.arange(20), filled, filled)
    keys, values = pool.read(0, torch.tensor([[pool.null_block]]), 4)
    assert not keys.any()
    assert not values.any()


def test_clearing_blocks_reaches_every_layer_and_no_other_block() -> None:
    pool = KVPool(SHAPE, num_blocks=3, block_tokens=4, device=torch.device("cpu"))
    filled = torch.ones(12, 3, 4, dtype=torch.bfloat16)
    for layer in range(2):
        pool.write(layer, torch.arange(12), filled, filled)
    pool.clear(torch.tensor([2, 0]))
    for layer in range(2):
        keys, values = pool.read(layer, torch.arange(3)[None], 12)
        assert keys[0, :, 0, 0].tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 4
        assert torch.equal(keys, values)


def test_blocks_come_back_from_host_memory_in_any_place() -> None:
    """Fault: a layer is left out, or blocks are copied to each other's places."""
    pool = KVPool(SHAPE, num_blocks=5, block_tokens=4, device=torch.device("cpu"))
    for layer in range(2):
        keys, values = torch.randn(2, 20, 3, 4).to(torch.bfloat16)
        pool.write(layer, torch.arange(20), keys, values)
    before = [pool.read(layer, torch.arange(5)[None], 20) for layer in range(2)]
    host = pool.host_blocks(3)
    pool.copy_out([4, 1], host, [2, 0])
    pool.clear(torch.tensor([4, 1]))
    pool.copy_in(host, [0, 2], [4, 1])  # each in the other's place
    for layer in range(2):
        for old, new in zip(
            before[layer], pool.read(layer, torch.arange(5)[None], 20), strict=True
        ):
            moved = old.view(5, 4, 3, 4)[[0, 4, 2, 3, 1]].view_as(new)
            assert torch.equal(new, moved)


def test_bytes_per_token_counts_k_and_v_of_all_layers() -> None:
    assert SHAPE.bytes_per_token == 2 * 2 * 3 * 4 * 2
