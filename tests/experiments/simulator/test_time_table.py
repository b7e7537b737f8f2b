"""A table of step times: exact at its nodes, between its values elsewhere."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.simulator.time_table import TimeTable

HAND = TimeTable(
    prefill=(0, 100), decodes=(0, 10), context=(0, 1000),
    # prefill 0: no decodes, ten of them; prefill 100: the same.
    milliseconds=(4.0, 4.0, 6.0, 8.0, 20.0, 20.0, 22.0, 24.0), pair_ms=0.001, copy_block_ms=0.5,
)  # fmt: skip


def axis() -> st.SearchStrategy[tuple[int, ...]]:
    return st.sets(st.integers(0, 2000), min_size=1, max_size=4).map(lambda s: tuple(sorted(s)))


@st.composite
def tables(draw: st.DrawFn, rising: bool = False) -> TimeTable:
    axes = [draw(axis()) for _ in range(3)]
    sizes = [len(nodes) for nodes in axes]
    count = math.prod(sizes)
    cells = np.array(draw(st.lists(st.floats(0.1, 50.0), min_size=count, max_size=count)))
    if rising:
        grid = cells.reshape(sizes)
        for along in range(3):
            grid = np.maximum.accumulate(grid, along)
        cells = grid.ravel()
    return TimeTable(axes[0], axes[1], axes[2], tuple(cells.tolist()))


@given(tables())
def test_it_is_exact_at_its_nodes(table: TimeTable) -> None:
    # Guards against: axes in the wrong order, and cells off by one.
    nodes = itertools.product(table.prefill, table.decodes, table.context)
    for (prefill, decodes, context), value in zip(nodes, table.milliseconds, strict=True):
        if decodes == 0 and (context != table.context[0] or prefill == 0):
            continue  # without decodes there is no context, and without both no step
        assert table.seconds(prefill, 0, decodes, decodes * context) == pytest.approx(value / 1e3)


@given(tables(), st.data())
def test_inside_it_stays_between_the_values_of_the_cell(
    table: TimeTable, data: st.DataObject
) -> None:
    prefill = data.draw(st.integers(table.prefill[0], table.prefill[-1]))
    decodes = data.draw(st.integers(table.decodes[0], table.decodes[-1]))
    mean = data.draw(st.integers(table.context[0], table.context[-1])) if decodes else 0
    if prefill + decodes == 0:
        return
    around = [
        [i for i, node in enumerate(nodes) if _near(nodes, i, value)]
        for nodes, value in (
            (table.prefill, prefill),
            (table.decodes, decodes),
            (table.context, mean),
        )
    ]
    shape = len(table.decodes), len(table.context)
    values = [
        table.milliseconds[(i * shape[0] + j) * shape[1] + k]
        for i, j, k in itertools.product(*around)
    ]
    made = table.seconds(prefill, 0, decodes, decodes * mean) * 1e3
    assert min(values) - 1e-9 <= made <= max(values) + 1e-9


def _near(nodes: tuple[int, ...], i: int, value: int) -> bool:
    """Whether a node is an end of the cell that a value lies in."""
    if value <= nodes[0]:
        return i == 0
    below = max(j for j, node in enumerate(nodes) if node <= value)
    return i in (below, below + 1)


@settings(max_examples=200)
@given(
    tables(rising=True), st.integers(0, 6000), st.integers(0, 6000), st.integers(0, 6000),
    st.integers(0, 500),
)  # fmt: skip
def test_it_rises_if_the_table_does_beyond_the_edge_too(
    table: TimeTable, prefill: int, decodes: int, mean: int, more: int
) -> None:
    # Guards against: lines that cross beyond the edge, so that a larger step takes less.
    def of(p: int, d: int, c: int) -> float:
        return table.seconds(p, 0, d, d * c)

    if prefill + decodes == 0:
        return
    now = of(prefill, decodes, mean)
    assert of(prefill + more, decodes, mean) >= now - 1e-12
    assert of(prefill, decodes, mean + more) >= now - 1e-12
    if decodes:  # the first decode brings a context, before which there was none
        assert of(prefill, decodes + more, mean) >= now - 1e-12


def test_hand_example() -> None:
    # A quarter of the way to 100 tokens, half to 10 decodes, half to 1,000 of context.
    assert HAND.seconds(25, 0, 5, 2500) == pytest.approx((5.5 + 0.25 * 16.0) / 1e3)
    assert HAND.seconds(25, 300, 5, 2500) == pytest.approx((5.5 + 4.0 + 0.3) / 1e3)
    # Beyond: 16 ms a hundred tokens, and (2 + 4 + 2 + 4) / 4 ms for ten decodes.
    assert HAND.seconds(200, 0, 0, 0) == pytest.approx(36e-3)
    assert HAND.seconds(0, 0, 20, 20_000) == pytest.approx((8 + 3) / 1e3)
    assert HAND.seconds(0, 0, 0, 0) == 0.0
    assert HAND.copies(4) == pytest.approx(2e-3)


def test_before_the_first_node_its_value_holds() -> None:
    # Guards against: a table that begins at 256 tokens telling of 0 seconds, or less.
    table = TimeTable((256, 512), (1, 2), (0,), (10.0, 11.0, 30.0, 31.0))
    assert table.seconds(1, 1, 0, 0) == pytest.approx(10e-3)


def test_past_the_edge_a_falling_table_does_not_fall_on() -> None:
    table = replace(HAND, milliseconds=(9.0, 9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 1.0))
    assert table.seconds(500, 0, 0, 0) == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"prefill": (5, 5)}, "prefill"),
        ({"context": ()}, "context"),
        ({"milliseconds": (1.0,)}, "milliseconds has 1 values, not 8"),
        ({"milliseconds": (1.0,) * 7 + (0.0,)}, "milliseconds has 0.0"),
        ({"pair_ms": -1.0}, "pair_ms"),
    ],
)
def test_what_is_no_table_is_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        replace(HAND, **change)  # type: ignore[arg-type]
