"""The paged kernel in Triton's interpreter: its numbers, and that company changes no bit."""

from collections.abc import Iterator, Sequence
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from engine.attention import triton_paged
from engine.attention.plan import Segment
from engine.attention.triton_paged import HeadShape, TileStep, TritonAttention
from engine.batch import batch_of
from engine.cuda.layout import lay_out
from engine.cuda.upload import upload

pytestmark = pytest.mark.usefixtures("matrix_units")

BLOCK = 4
SPLIT = 64
TABLE = [(i * 17 + 5) % 37 for i in range(37)]  # shuffled


@pytest.fixture(autouse=True)
def _short_splits() -> Iterator[None]:
    with patch.object(triton_paged, "SPLIT", SPLIT):
        yield


class Lab:
    """One sequence in a pool whose other slots hold no numbers."""

    def __init__(
        self, heads: int, kv_heads: int, dim: int, tokens: int, dtype: torch.dtype = torch.float32
    ) -> None:
        generator = torch.Generator().manual_seed(dim + heads)
        self.q = torch.randn(tokens, heads, dim, generator=generator).to(dtype)
        self.kv = torch.randn(tokens, 2, kv_heads, dim, generator=generator).to(dtype)
        pool = torch.full((1, 40, BLOCK, 2, kv_heads, dim), float("nan"), dtype=dtype)
        slots = [TABLE[i // BLOCK] * BLOCK + i % BLOCK for i in range(tokens)]
        pool[0].flatten(0, 1)[slots] = self.kv
        self.attention = TritonAttention(HeadShape.of(heads, kv_heads, dim), pool)

    def run(self, parts: Sequence[tuple[int, int]], busy: int = 1) -> list[Tensor]:
        """Attend (start, length) parts of the sequence as one step."""
        segments = [Segment(TABLE, start, length) for start, length in parts]
        batch = batch_of([0] * sum(length for _, length in parts), segments, [])
        layout = lay_out(batch, self.attention.shape.tile_positions, BLOCK)
        step = TileStep.of(layout, upload(layout.arrays(), torch.device("cpu")))
        q = torch.cat([self.q[start : start + length] for start, length in parts])
        with patch.object(triton_paged, "BUSY", busy):
            out = self.attention.run(0, q, step, 0.25)
        return list(out.split([length for _, length in parts]))

    def expected(self, start: int, length: int) -> Tensor:
        group = self.q.shape[1] // self.kv.shape[2]
        k, v = self.kv[: start + length].double().repeat_interleave(group, 2).unbind(1)
        q = self.q[start : start + length].double()
        hidden = torch.arange(start + length) > torch.arange(start, start + length)[:, None]
        mask = torch.zeros(hidden.shape, dtype=torch.float64).masked_fill(hidden, float("-inf"))
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.25)
        return out[0].transpose(0, 1)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"),
    [(4, 2, 64), (3, 1, 80), (2, 2, 96), (8, 1, 128), (2, 1, 256), (40, 1, 8)],
)
def test_it_attends_as_torch_does(heads: int, kv_heads: int, dim: int) -> None:
    lab = Lab(heads, kv_heads, dim, 13)
    (out,) = lab.run([(5, 8)])
    torch.testing.assert_close(out.double(), lab.expected(5, 8), rtol=1e-5, atol=1e-5)


def test_it_attends_over_bfloat16() -> None:
    lab = Lab(4, 2, 16, 9, torch.bfloat16)
    (out,) = lab.run([(0, 9)])
    torch.testing.assert_close(out.double(), lab.expected(0, 9), rtol=2e-2, atol=2e-2)


def test_a_row_has_the_same_bits_in_a_prefill_in_chunks_and_as_a_decode() -> None:
    lab = Lab(4, 2, 16, 2 * SPLIT + 5)
    (whole,) = lab.run([(0, 2 * SPLIT + 5)])
    torch.testing.assert_close(whole.double(), lab.expected(0, len(whole)), rtol=1e-5, atol=1e-5)
    for start, length in ((60, 7), (SPLIT, 3), (2 * SPLIT - 1, 6)):
        (chunk,) = lab.run([(start, length)])
        assert torch.equal(chunk, whole[start : start + length]), start
    for position in (0, SPLIT - 1, SPLIT, 2 * SPLIT + 4):
        (decode,) = lab.run([(position, 1)])
        assert torch.equal(decode[0], whole[position]), position


def test_programs_that_share_a_rows_keys_give_the_bits_of_one_that_walks_them() -> None:
    # A few decodes are spread over programs, many are not; the seam must not show.
    lab = Lab(4, 2, 16, 2 * SPLIT + 5)
    parts = [(2 * SPLIT + 4, 1), (3, 1), (SPLIT, 1)]
    alone = lab.run(parts)
    for busy in (12, 100):
        spread = lab.run(parts, busy)
        assert all(map(torch.equal, alone, spread)), busy


def test_neighbours_change_no_bit() -> None:
    lab = Lab(6, 2, 16, 40)
    (alone,) = lab.run([(30, 9)])
    _, together, decode = lab.run([(3, 20), (30, 9), (38, 1)])
    assert torch.equal(together, alone)
    assert torch.equal(decode[0], alone[8])
