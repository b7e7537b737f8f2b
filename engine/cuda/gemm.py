"""InvariantGemm: matrix products on a GPU, with the same bits for a row in any batch.

What decides the bits of an element is the order in which its K products are added: the
:class:`Order`, a function of the weight's shape and dtype alone.  How large the tiles are,
and whether one program adds up all segments or several programs one each, follows from
the number of rows and decides only the speed.  That the tile's height decides no bit is a
property of the GPU's matrix units, so :func:`usable_tiles` asks them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from engine.cuda.kernels.gemm import add_segments, gemm
from engine.linear import NotInvariant, cancelling_probe

BUSY = 128
"""Programs that keep a large GPU busy; a constant, so that orders are the same on all."""

_SHORTEST_SEGMENT = 1024
_BAND = 8
_ADD_WIDTH = 1024
_SPARE = 5  # rows of a probe beyond the highest tile
_PROBED_COLUMNS = 512


@dataclass(frozen=True, slots=True)
class Order:
    """In which order K products are summed: all that decides bits.

    Attributes:
        step: products that one instruction sequence adds to the sum, TILE_K.
        segment: length of the pieces of K that are summed apart, a multiple of ``step``.
        segments: how many pieces there are.
    """

    step: int
    segment: int
    segments: int


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program computes: decides speed alone.

    Attributes:
        rows: height.
        columns: width.
        warps: groups of 32 threads that share it.
        stages: how many steps ahead memory is read.
    """

    rows: int
    columns: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Parts:
    """A product whose segments are still apart: who reads it adds them from the first on.

    Attributes:
        data: [segments, rows, n] float32, or [rows, n] in the layer's dtype when ``count`` is 1.
        count: number of segments.
    """

    data: Tensor
    count: int


def order_of(n: int, k: int, dtype: torch.dtype) -> Order:
    """The order for a weight [n, k].

    K is cut when the columns alone make too few tiles to keep a GPU busy: into a power of
    two of pieces, of 1,024 or more.
    """
    step = 32 if dtype == torch.float32 else 64
    columns = -(-n // _narrow_columns(n))
    segments = 1
    while columns * segments * 2 <= BUSY and k >= segments * 2 * _SHORTEST_SEGMENT:
        segments *= 2
    segment = -(-k // (segments * step)) * step
    return Order(step, segment, -(-k // segment))


def _narrow_columns(n: int) -> int:
    """Width of the tiles for few rows: as wide as leaves about enough of them."""
    for columns in (128, 64):
        if n >= columns * BUSY // 4:
            return columns
    return 32


def _tiles(n: int, dtype: torch.dtype) -> tuple[Tile, ...]:
    """Tiles that may be tried, lowest first; the second is the reference."""
    if dtype == torch.float32:
        return Tile(16, 32, 4, 2), Tile(64, 32, 4, 2), Tile(64, 64, 4, 2)
    narrow = _narrow_columns(n)
    return Tile(16, narrow, 4, 5), Tile(64, narrow, 4, 4), Tile(128, 128, 8, 4)


def _reference(n: int, dtype: torch.dtype) -> Tile:
    return _tiles(n, dtype)[1]


def _is_joined(rows: int, n: int, order: Order, tile: Tile) -> bool:
    """Whether there are programs enough without one for each segment."""
    tiles = -(-rows // tile.rows) * -(-n // tile.columns)
    return order.segments > 1 and tiles >= BUSY


def _launch(
    x: Tensor, weight: Tensor, bias: Tensor | None, order: Order, tile: Tile, joined: bool
) -> Parts:
    rows, (n, k) = len(x), weight.shape
    apart = order.segments > 1 and not joined
    shape = (order.segments, rows, n) if apart else (rows, n)
    out = torch.empty(shape, dtype=torch.float32 if apart else x.dtype, device=x.device)
    tiles = -(-rows // tile.rows) * -(-n // tile.columns)
    gemm[(tiles, order.segments if apart else 1)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        rows,
        n,
        k,
        order.segment,
        TILE_M=tile.rows,
        TILE_N=tile.columns,
        TILE_K=order.step,
        BAND=_BAND,
        JOINED=joined,
        FINAL=not apart,
        BIASED=bias is not None,
        EVEN=k % order.step == 0,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return Parts(out, order.segments if apart else 1)


def joined(parts: Parts, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Add up the segments of a product, then ``bias``: [rows, n]; a whole one is left as it is."""
    if parts.count == 1:
        return parts.data
    _, rows, n = parts.data.shape
    out = torch.empty(rows, n, dtype=dtype, device=parts.data.device)
    add_segments[(rows, -(-n // _ADD_WIDTH))](
        parts.data,
        parts.data if bias is None else bias,
        out,
        rows,
        n,
        SEGMENTS=parts.count,
        BIASED=bias is not None,
        WIDTH=_ADD_WIDTH,
        enable_fp_fusion=False,
    )
    return out


def usable_tiles(n: int, k: int, like: Tensor) -> tuple[Tile, ...]:
    """The tiles that give the reference tile's bits on this device, lowest first.

    Tried with a probe in which rounding is all that is left of the sums, so that another
    order shows (:func:`engine.linear.cancelling_probe`).

    Args:
        n: output features.
        k: input features.
        like: a tensor with the layer's device and dtype.

    Raises:
        NotInvariant: a row's bits depend on its place or on the number of rows even in the
            reference tile.
    """
    order, tiles = order_of(n, k, like.dtype), _tiles(n, like.dtype)
    highest = tiles[-1].rows
    x, weight = cancelling_probe(highest + _SPARE, min(n, _PROBED_COLUMNS), k, like)

    def run(rows: Tensor, tile: Tile, together: bool) -> Tensor:
        parts = _launch(rows.contiguous(), weight, None, order, tile, together)
        return joined(parts, None, like.dtype)

    reference = _reference(n, like.dtype)
    expected = run(x, reference, False)

    def agrees(tile: Tile) -> bool:
        pieces = ((0, 1), (3, tile.rows), (2, tile.rows + 3), (highest, _SPARE))
        try:
            return all(
                torch.equal(run(x[at : at + rows], tile, together), expected[at : at + rows])
                for together in ((False, True) if order.segments > 1 else (False,))
                for at, rows in pieces
            )
        except OutOfResources:  # a GPU with little shared memory
            return False

    if not agrees(reference):
        what = f"Triton's product with a weight [{n}, {k}] in {like.dtype} on {like.device}"
        raise NotInvariant(what)
    return tuple(tile for tile in tiles if tile == reference or agrees(tile))


class InvariantGemm:
    """y = x W^T + b over one weight, the same bits for a row in any batch.

    Args:
        weight: [n, k], contiguous.
        bias: [n] or None.
        tiles: as :func:`usable_tiles` found them.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, tiles: tuple[Tile, ...]) -> None:
        if not weight.is_contiguous():
            raise ValueError("the weight of a product must be contiguous")
        self.weight = weight
        self.bias = bias
        self.order = order_of(weight.shape[0], weight.shape[1], weight.dtype)
        self._tiles = tiles

    def tile(self, rows: int) -> Tile:
        """The lowest tile that takes all rows at once, or the highest there is."""
        return next((tile for tile in self._tiles if tile.rows >= rows), self._tiles[-1])

    def parts(self, x: Tensor) -> Parts:
        """x [rows, k] to a product that is still in segments, if that is faster and has no bias."""
        tile = self.tile(len(x))
        together = _is_joined(len(x), self.weight.shape[0], self.order, tile)
        parts = _launch(x.contiguous(), self.weight, self.bias, self.order, tile, together)
        if self.bias is not None and parts.count > 1:
            return Parts(joined(parts, self.bias, x.dtype), 1)
        return parts

    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, k] to [rows, n] in x's dtype."""
        return joined(self.parts(x), None, x.dtype)


class Gemms:
    """Makes products, and tries each shape of a weight once.

    Attributes:
        orders: for each shape (n, k) so far the order of its products.
    """

    def __init__(self) -> None:
        self.orders: dict[tuple[int, int], Order] = {}
        self._tiles: dict[tuple[int, int], tuple[Tile, ...]] = {}

    def of(self, weight: Tensor, bias: Tensor | None) -> InvariantGemm:
        """A product over a contiguous weight [n, k] and a bias [n].

        Raises:
            NotInvariant: from :func:`usable_tiles`.
        """
        n, k = weight.shape
        if (n, k) not in self._tiles:
            self._tiles[n, k] = usable_tiles(n, k, weight)
        made = InvariantGemm(weight, bias, self._tiles[n, k])
        self.orders[n, k] = made.order
        return made
