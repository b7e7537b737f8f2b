"""The invariant product in Triton's interpreter: its sums, its segments, and its start-up check."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from engine.cuda import gemm
from engine.cuda.gemm import Gemms, InvariantGemm, order_of, usable_tiles
from engine.linear import NotInvariant

pytestmark = pytest.mark.usefixtures("matrix_units")


@pytest.fixture(autouse=True)
def _short_segments() -> Any:
    with patch.object(gemm, "_SHORTEST_SEGMENT", 32):
        yield


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_those_of_torch(dtype: torch.dtype) -> None:
    weight, bias, x = (
        numbers(40, 72, dtype=dtype),
        numbers(40, dtype=dtype),
        numbers(19, 72, dtype=dtype),
    )
    made = InvariantGemm(weight, bias, gemm._tiles(40, dtype))
    expected = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    assert made.order.segments == 2
    rounding = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(made(x).double(), expected, rtol=rounding, atol=rounding)


def test_a_row_has_the_same_bits_in_any_number_of_rows_and_at_any_place() -> None:
    x = numbers(67, 96)
    made = Gemms().of(numbers(33, 96), None)
    assert made.order.segments > 1
    whole = made(x)
    for first, count in ((0, 1), (5, 2), (3, 17), (2, 65)):
        assert torch.equal(made(x[first : first + count]), whole[first : first + count]), count


def test_segments_added_by_one_program_are_those_added_by_a_second_kernel() -> None:
    # Few rows share segments among programs, many do not: the same bits, or decodes and
    # prefills part.
    x, weight, bias = numbers(3, 128), numbers(20, 128), numbers(20)
    order, tile = order_of(20, 128, x.dtype), gemm._reference(20, x.dtype)
    apart = gemm._launch(x, weight, bias, order, tile, False)
    assert apart.count == order.segments == 4
    together = gemm._launch(x, weight, bias, order, tile, True)
    assert torch.equal(gemm.joined(apart, bias, x.dtype), together.data)


def test_orders_do_not_depend_on_the_device_and_keep_busy_what_is_large() -> None:
    with patch.object(gemm, "_SHORTEST_SEGMENT", 1024):
        shapes = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))
        orders = [order_of(n, k, torch.bfloat16) for n, k in shapes]
    assert [order.segments for order in orders] == [2, 4, 1, 4, 1]
    assert all(order.segment % order.step == 0 for order in orders)


def _by_height(dot: Callable[..., Any]) -> Callable[..., Any]:
    """A matrix unit whose low tiles take another way, as Hopper's may."""

    def unit(builder: Any, a: Any, b: Any, total: Any, *rest: Any) -> Any:
        out = dot(builder, a, b, total, *rest)
        if a.data.shape[0] < 64:
            out.data = out.data + 1e-3
        return out

    return unit


def test_a_tile_with_other_bits_is_not_used() -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    like = torch.empty(0)
    assert [tile.rows for tile in usable_tiles(24, 64, like)] == [16, 64, 64]
    with patch.object(InterpreterBuilder, "create_dot", _by_height(InterpreterBuilder.create_dot)):
        assert [tile.rows for tile in usable_tiles(24, 64, like)] == [64, 64]


def test_units_that_mix_rows_are_refused() -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    dot = InterpreterBuilder.create_dot

    def unit(builder: Any, a: Any, b: Any, total: Any, *rest: Any) -> Any:
        out = dot(builder, a, b, total, *rest)
        out.data = out.data + 1e-3 * a.data.astype("f4").sum()
        return out

    with (
        patch.object(InterpreterBuilder, "create_dot", unit),
        pytest.raises(NotInvariant, match=r"weight \[24, 64\] in torch.float32"),
    ):
        usable_tiles(24, 64, torch.empty(0))


def test_a_weight_with_gaps_is_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        InvariantGemm(numbers(8, 16)[:, ::2], None, gemm._tiles(8, torch.float32))
