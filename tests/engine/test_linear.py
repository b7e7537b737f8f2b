"""engine.linear: a row's bits must not depend on how many rows it is computed with."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import engine.linear
from engine.linear import (
    HIGHEST,
    PROBED_ROWS,
    InvariantLinear,
    NotInvariant,
    Tiling,
    find_tiling,
    make_invariant,
)

DTYPES = [torch.float32, torch.bfloat16]
SHAPES = [(48, 64), (64, 1536), (33, 17)]


def _in_order(x: Tensor, w: Tensor) -> Tensor:
    """x w^T summed term by term: the same order whatever the shape."""
    total = torch.zeros(x.shape[0], w.shape[0])
    for k in range(x.shape[1]):
        total += x[:, k : k + 1].float() * w[:, k].float()
    return total.to(x.dtype)


def _machine(monkeypatch: pytest.MonkeyPatch, kernel: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Pretend that this machine's library computes linears by ``kernel``."""
    make = lambda weight, bias: lambda x: kernel(x, weight)  # noqa: E731
    monkeypatch.setattr(engine.linear, "_packed", make)
    monkeypatch.setattr(engine.linear, "_plain", make)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_alone_equals_the_row_in_any_batch(
    dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(shape, dtype=dtype)
    linear = InvariantLinear(
        weight, torch.randn(shape[0], dtype=dtype), find_tiling(*shape, weight)
    )
    x = torch.randn(600, shape[1], dtype=dtype)
    alone = torch.cat([linear(x[i : i + 1]) for i in range(600)])
    for rows in (*PROBED_ROWS, 257, 300, 511, 513, 600):
        assert torch.equal(linear(x[:rows]), alone[:rows]), f"{rows} rows"
        assert torch.equal(linear(x[-rows:]), alone[-rows:]), f"the last {rows} rows"


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_computes_what_nn_linear_computes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    reference = nn.Linear(64, 48, dtype=dtype)
    linear = InvariantLinear(
        reference.weight, reference.bias, find_tiling(48, 64, reference.weight)
    )
    x = torch.randn(2, 5, 64, dtype=dtype)
    torch.testing.assert_close(linear(x), reference(x))
    assert linear(x[:0]).shape == (0, 5, 48)


def test_a_machine_that_changes_its_order_at_129_rows_gets_tiles_of_128(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Intel's AMX kernels do so for long sums."""

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        return _in_order(x, w) if x.shape[0] <= 128 else _in_order(x.flip(1), w.flip(1))

    _machine(monkeypatch, kernel)
    tiling = find_tiling(12, 40, torch.empty(0))
    assert (tiling.lowest, tiling.highest) == (1, 128)


def test_a_machine_with_a_kernel_of_its_own_for_one_row_gets_padding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kernel(x: Tensor, w: Tensor) -> Tensor:
        return _in_order(x, w) if x.shape[0] > 1 else _in_order(x.flip(1), w.flip(1))

    _machine(monkeypatch, kernel)
    tiling = find_tiling(12, 40, torch.empty(0))
    assert (tiling.lowest, tiling.highest) == (2, HIGHEST[0])


def test_a_machine_that_never_agrees_gets_one_fixed_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(x: Tensor, w: Tensor) -> Tensor:
        shift = x.shape[0] % x.shape[1]
        return _in_order(x.roll(shift, 1), w.roll(shift, 1))

    _machine(monkeypatch, kernel)
    tiling = find_tiling(12, 41, torch.empty(0))
    assert tiling.lowest == tiling.highest


def test_a_machine_where_a_rows_place_matters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(x: Tensor, w: Tensor) -> Tensor:
        rows = [_in_order(x[i : i + 1].roll(i, 1), w.roll(i, 1)) for i in range(x.shape[0])]
        return torch.cat(rows)

    _machine(monkeypatch, kernel)
    with pytest.raises(NotInvariant, match=r"\[12, 41\] in torch.float32 on cpu"):
        find_tiling(12, 41, torch.empty(0))


def test_padding_and_cutting_stay_inside_the_tiling(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        seen.append(x.shape[0])
        return x @ w.T

    _machine(monkeypatch, kernel)
    weight = torch.randn(3, 4)
    linear = InvariantLinear(weight, None, Tiling(packed=False, lowest=4, highest=32))
    for rows in (1, 4, 32, 33, 70):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(linear(x), x @ weight.T)
    assert seen == [4, 4, 32, 32, 4, 32, 32, 6]


def test_every_linear_of_a_model_is_swapped_and_tied_weights_still_work() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 4, bias=False), nn.ReLU()))
    x = torch.randn(3, 8)
    expected = model(x)
    tilings = make_invariant(model)
    assert set(tilings) == {(8, 8, True), (4, 8, False)}
    assert not any(isinstance(m, nn.Linear) for m in model.modules())
    torch.testing.assert_close(model(x), expected)
