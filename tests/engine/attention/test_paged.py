"""engine.attention.paged: right against a plain model, and the same bits in any company."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import engine.attention.paged
from engine.attention.paged import PagedAttention, TileMasks, find_decode_tile
from engine.attention.plan import QUERY_TILE, AttentionPlanner, Segment, key_length
from engine.kv_pool import KVPool, KVShape
from engine.linear import NotInvariant

CPU = torch.device("cpu")
BLOCK = 16
LENGTH = 150
BLOCKS = -(-LENGTH // BLOCK)


class Sequences:
    """Several sequences' random q, k, v [LENGTH, heads, d], and a pool that holds them all."""

    def __init__(self, count: int, kv_heads: int, group: int, dim: int) -> None:
        generator = torch.Generator().manual_seed(count)
        shape = KVShape(1, kv_heads, dim, torch.float32)
        self.pool = KVPool(shape, count * BLOCKS, BLOCK, CPU)
        self.attention = PagedAttention(self.pool, kv_heads * group)
        self.planner = AttentionPlanner(BLOCK, self.pool.null_block, CPU)
        self.q = torch.randn(count, LENGTH, kv_heads * group, dim, generator=generator)
        self.k = torch.randn(count, LENGTH, kv_heads, dim, generator=generator)
        self.v = torch.randn(count, LENGTH, kv_heads, dim, generator=generator)
        # Scattered and interleaved, as a pool in use is.
        order = torch.randperm(count * BLOCKS, generator=generator)
        self.tables = order.view(count, BLOCKS).tolist()

    def run(self, parts: list[tuple[int, int, int]]) -> list[Tensor]:
        """Attend (sequence, start, length) parts as one batch."""
        plan = self.planner.plan([Segment(self.tables[s], a, n) for s, a, n in parts])
        q, k, v = (
            torch.cat([x[s, a : a + n] for s, a, n in parts]) for x in (self.q, self.k, self.v)
        )
        scale = self.q.shape[-1] ** -0.5
        self.attention.begin(plan)
        out = self.attention.run(plan, 0, q, k, v, scale)
        return list(out.split([n for _, _, n in parts]))

    def plain(self, sequence: int) -> Tensor:
        """Causal attention in float64, straight from the definition."""
        group = self.q.shape[2] // self.k.shape[2]
        q = self.q[sequence].double().transpose(0, 1)
        k = self.k[sequence].double().repeat_interleave(group, 1).transpose(0, 1)
        v = self.v[sequence].double().repeat_interleave(group, 1).transpose(0, 1)
        scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
        future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return (weights @ v).transpose(0, 1)


@pytest.mark.parametrize(("kv_heads", "group", "dim"), [(3, 3, 64), (2, 1, 16), (1, 7, 128)])
def test_it_is_causal_attention(kv_heads: int, group: int, dim: int) -> None:
    sequences = Sequences(2, kv_heads, group, dim)
    whole = sequences.run([(0, 0, LENGTH), (1, 0, LENGTH)])
    for i, out in enumerate(whole):
        torch.testing.assert_close(out.double(), sequences.plain(i), rtol=1e-5, atol=1e-5)


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_any_chunks_in_any_company_give_the_bits_of_whole_and_alone(data: st.DataObject) -> None:
    """vllm#51902: a decode row beside a 9- and a 10-token prefill got other logits."""
    group = data.draw(st.sampled_from([1, 2, 3, 4, 8]))
    count = data.draw(st.integers(1, 6))
    sequences = Sequences(count, 2, group, 16)
    alone = [sequences.run([(i, 0, LENGTH)])[0] for i in range(count)]
    done = [0] * count
    while any(n < LENGTH for n in done):
        open_ones = [i for i in range(count) if done[i] < LENGTH]
        chosen = data.draw(st.lists(st.sampled_from(open_ones), min_size=1, unique=True))
        parts = [
            (i, done[i], min(LENGTH - done[i], data.draw(st.sampled_from([1, 1, 9, 10, 64, 100]))))
            for i in chosen
        ]
        for (i, start, n), out in zip(parts, sequences.run(parts), strict=True):
            assert torch.equal(out, alone[i][start : start + n]), (i, start, n)
            done[i] += n


def test_what_an_earlier_owner_left_in_a_block_reaches_nobody() -> None:
    """A request whose values overflowed must not poison those that get its blocks."""
    sequences = Sequences(2, 2, 2, 16)
    clean = sequences.run([(0, 0, 70), (1, 0, 1)])
    slots = torch.arange(sequences.pool.num_blocks * BLOCK)
    bad = torch.full((len(slots), 2, 16), float("nan"))
    sequences.pool.write(0, slots, bad, bad)
    for before, after in zip(clean, sequences.run([(0, 0, 70), (1, 0, 1)]), strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("row", [9, 30, 50])
def test_a_kernel_with_one_place_of_its_own_in_the_tile_is_refused(
    monkeypatch: pytest.MonkeyPatch, row: int
) -> None:
    """Matrix kernels treat what is left over from their panels apart, wherever that falls."""
    attend = engine.attention.paged._attend

    def other(q: Tensor, *rest: object) -> Tensor:
        out: Tensor = attend(q, *rest)  # type: ignore[arg-type]
        if q.shape[2] > row:
            out[:, :, row] *= 1 + 2**-20
        return out

    monkeypatch.setattr(engine.attention.paged, "_attend", other)
    with pytest.raises(NotInvariant, match="3 query heads a group and head size 64"):
        find_decode_tile(2, 3, 64, CPU)


def test_the_decode_tile_is_no_larger_than_a_query_tile() -> None:
    assert 3 <= find_decode_tile(2, 3, 64, CPU) <= 3 * 64


@given(st.lists(st.integers(0, 600), min_size=1, max_size=4))
def test_the_mask_of_any_tile_is_causal_in_whatever_order_tiles_come(tiles: list[int]) -> None:
    masks = TileMasks(2, CPU)
    for start in (tile * QUERY_TILE for tile in tiles):
        keys = key_length(start)
        mask = masks.of(start, keys)
        rows = torch.arange(start, start + QUERY_TILE).repeat(2)
        assert mask.shape == (1, 1, 2 * QUERY_TILE, keys)
        assert torch.equal(torch.isneginf(mask[0, 0]), torch.arange(keys) > rows[:, None])
