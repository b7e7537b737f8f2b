"""What a graph reads, with the graph itself left out: a body that writes down what it was given."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.attention.plan import Segment
from engine.attention.triton_paged import TileStep
from engine.batch import batch_of
from engine.cuda.graphs import DecodeGraphs, EveryTime, padded_sizes
from engine.cuda.layout import lay_out

BLOCK = 4
NULL = 99


class Body:
    """Hidden states that say which token, position and slot of memory each row has."""

    def __init__(self) -> None:
        self.last = torch.empty(0)

    def __call__(self, tokens: Tensor, step: TileStep) -> Tensor:
        assert step.decodes
        assert step.tile_lengths.tolist() == [1] * len(tokens)
        assert torch.equal(step.tile_positions, step.positions)
        at = step.positions.long()[:, None] // BLOCK
        block = step.tables[step.row_tables.long()].gather(1, at).squeeze(1)
        self.last = torch.stack((tokens, step.positions, block), 1)
        return self.last.clone()


Decode = tuple[int, int, int]  # token, position, first block


@given(steps=st.lists(st.lists(st.tuples(*[st.integers(0, 30)] * 3), min_size=1, max_size=11)))
@settings(max_examples=40)
def test_every_step_sees_its_own_rows_and_padding_sees_the_null_block(
    steps: list[list[Decode]],
) -> None:
    body = Body()
    graphs = DecodeGraphs(body, EveryTime(), 11, 32, BLOCK, NULL, torch.device("cpu"))
    for rows in steps:
        tables = [[first + i for i in range(position // BLOCK + 1)] for _, position, first in rows]
        segments = [
            Segment(table, position, 1)
            for table, (_, position, _) in zip(tables, rows, strict=True)
        ]
        tokens = np.array([token for token, _, _ in rows], dtype=np.int32)
        out = graphs.run(tokens, lay_out(batch_of(tokens.tolist(), segments, []), 8, BLOCK))
        naive = [[token, position, first + position // BLOCK] for token, position, first in rows]
        assert out.tolist() == naive
        # What a padding row stores must not land in anyone's block, also where an earlier
        # step had a row.
        assert body.last[len(rows) :, 2].tolist() == [NULL] * (len(body.last) - len(rows))


@pytest.mark.parametrize("most", [1, 2, 3, 9, 64, 100, 256, 300])
def test_every_number_of_rows_has_a_size_that_is_not_much_larger(most: int) -> None:
    sizes = padded_sizes(most)
    assert list(sizes) == sorted(set(sizes))
    assert most <= sizes[-1] <= most + 64
    for rows in range(1, most + 1):
        size = next(size for size in sizes if size >= rows)
        assert size <= max(rows + 8, rows * 5 // 4), rows


def test_the_largest_is_recorded_first() -> None:
    seen: list[int] = []

    def body(tokens: Tensor, step: TileStep) -> Tensor:
        seen.append(len(tokens))
        return tokens[:, None].clone()

    DecodeGraphs(body, EveryTime(), 8, 16, BLOCK, NULL, torch.device("cpu"))
    assert seen == [8, 4, 2, 1]
