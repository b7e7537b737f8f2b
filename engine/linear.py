"""Linear layers whose output bits do not depend on the batch.

A matrix product sums K terms for each output, and the order of that sum decides
its last bits.  Libraries choose the order by the number of rows M, so the same
row can come out differently alone and in a batch.  What holds on one processor
(the kernel, its blocking, where the order changes) does not hold on the next, so
nothing is assumed here: for each shape, :func:`find_tiling` measures for which
range of M this machine's kernel keeps one order, and :class:`InvariantLinear`
stays inside that range, by cutting long inputs into tiles and padding short ones.

The probe is made so that a change of order cannot hide.  Its rows cancel: each
product appears once with each sign, so the exact result is 0 and what is left is
rounding error alone, different in most elements as soon as the order is
different.  Random data would show the same change in perhaps one bfloat16 result
of ten thousand.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.activation import make_activations_invariant

# Row counts around every power of two and its middle: where kernels change.
PROBED_ROWS = (
    *range(1, 34), 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 128, 129, 159, 160, 161,
    191, 192, 193, 254, 255, 256, 257, 300, 385, 511, 512, 640, 767, 768, 897, 1023, 1024,
)  # fmt: skip
CHEAP_PADDING = (1, 2, 4, 8)
COSTLY_PADDING = (16, 32)
HIGHEST = (1024, 256, 128, 64, 32)
# A probe computes dozens of tiles: tiles of more multiply-adds than these are not tried.
_MAX_TILE_MACS = {"cpu": 2**31, "cuda": 2**38}
_OFFSET = 3  # rows that a probe is shifted by, so that alignment cannot matter unseen

Kernel = Callable[[Tensor], Tensor]


class NotInvariant(RuntimeError):
    """No way was found to keep a layer's bits independent of the batch.

    Attributes:
        what: the operation, with its shape and dtype.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what}: the result depends on the batch in every way that was tried"


@dataclass(frozen=True, slots=True)
class Tiling:
    """How many rows a kernel may be given at once.

    Attributes:
        packed: the weight is in the kernel's own blocked layout (oneDNN).
        lowest: fewer rows are padded up to this many.
        highest: more rows are cut into tiles of at most this many.
    """

    packed: bool
    lowest: int
    highest: int


def _packed(weight: Tensor, bias: Tensor | None) -> Kernel:
    """Return a linear over ``weight`` packed once, by the operators that Inductor emits."""
    blocked = torch.ops.mkldnn._reorder_linear_weight(weight, 1)

    def run(x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, blocked, bias, "none", [], "")
        return out

    return run


def _plain(weight: Tensor, bias: Tensor | None) -> Kernel:
    return lambda x: functional.linear(x, weight, bias)


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN's packed linear exists for this device and dtype."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and torch._C._has_mkldnn
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def cancelling_probe(rows: int, n: int, k: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return x [rows, k] and w [n, k] whose exact product is zero everywhere."""
    generator = torch.Generator().manual_seed(n * 1_000_003 + k)
    half = k // 2
    x_half = torch.randn(rows, half, generator=generator)
    w_half = torch.randn(n, half, generator=generator)
    rest = torch.zeros(1)
    x = torch.cat([x_half, x_half, rest.expand(rows, k % 2)], 1)
    w = torch.cat([w_half, -w_half, rest.expand(n, k % 2)], 1)
    # Shuffled, so that a term and its opposite are far apart in the sum.
    shuffle = torch.randperm(k, generator=generator)
    return x[:, shuffle].to(like).contiguous(), w[:, shuffle].to(like).contiguous()


def _same_as_full(kernel: Kernel, x: Tensor, highest: int) -> dict[int, bool]:
    """For each probed M <= highest: are all rows' bits those of a full tile?

    Empty if a row's bits depend on its position in a full tile.
    """
    head, shifted = x[:highest], x[_OFFSET : _OFFSET + highest]
    reference, moved = kernel(head), kernel(shifted)
    if not torch.equal(reference[_OFFSET:], moved[:-_OFFSET]):
        return {}
    return {
        m: torch.equal(kernel(head[:m]), reference[:m])
        and torch.equal(kernel(shifted[:m]), moved[:m])
        for m in PROBED_ROWS
        if m <= highest
    }


def find_tiling(n: int, k: int, like: Tensor, biased: bool = False) -> Tiling:
    """Measure which row counts give the same bits for a [n, k] weight.

    Prefers little padding, then large tiles, then the packed kernel.  The last
    resort is a tile of exactly 32 rows, which needs no more than that a row's
    position in the tile does not matter.

    Args:
        n: output features.
        k: input features.
        like: a tensor with the layer's device and dtype.
        biased: the layer adds a bias, which may choose another kernel.

    Raises:
        NotInvariant: a row's position in a fixed tile changes its bits.
    """
    most = _MAX_TILE_MACS[like.device.type] // (n * k)
    sizes = [size for size in HIGHEST if size <= max(most, HIGHEST[-1])]
    x, w = cancelling_probe(sizes[0] + _OFFSET, n, k, like)
    bias = w.new_zeros(n) if biased else None
    kernels = [(True, _packed(w, bias))] if can_pack(w) else []
    kernels.append((False, _plain(w, bias)))
    for paddings in (CHEAP_PADDING, COSTLY_PADDING):
        for highest in sizes:
            for packed, kernel in kernels:
                same = _same_as_full(kernel, x, highest)
                for lowest in paddings:
                    if same and all(ok for m, ok in same.items() if m >= lowest):
                        return Tiling(packed, lowest, highest)
    raise NotInvariant(f"linear [{n}, {k}] in {like.dtype} on {like.device}")


class InvariantLinear(nn.Module):
    """A drop-in for ``nn.Linear``: y = x W^T + b, the same bits for a row in any batch."""

    def __init__(self, weight: Tensor, bias: Tensor | None, tiling: Tiling) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.tiling = tiling
        weight = weight.detach()
        bias = None if bias is None else bias.detach()
        self._kernel = _packed(weight, bias) if tiling.packed else _plain(weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        rows = x.reshape(-1, self.in_features)
        count, tiling = rows.shape[0], self.tiling
        if tiling.lowest <= count <= tiling.highest:
            out = self._kernel(rows)
        else:
            out = torch.cat([self._tile(tile) for tile in torch.split(rows, tiling.highest)])
        return out.reshape(*x.shape[:-1], self.out_features)

    def _tile(self, rows: Tensor) -> Tensor:
        count = rows.shape[0]
        if count >= self.tiling.lowest:
            return self._kernel(rows)
        return self._kernel(functional.pad(rows, (0, 0, 0, self.tiling.lowest - count)))[:count]


Shape = tuple[int, int, bool]


def make_invariant(model: nn.Module) -> dict[Shape, Tiling]:
    """Swap every ``nn.Linear`` in ``model`` for an :class:`InvariantLinear`, in place.

    On a CPU its activations are made invariant too.

    Returns the tiling of each shape (out_features, in_features, has a bias), which is
    part of the replica's numeric fingerprint.

    Raises:
        NotInvariant: from :func:`find_tiling`.
    """
    tilings: dict[Shape, Tiling] = {}
    linears = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    for name, linear in linears:
        n, k, biased = shape = (*linear.weight.shape, linear.bias is not None)
        if shape not in tilings:
            tilings[shape] = find_tiling(n, k, linear.weight, biased)
        parent = model.get_submodule(name.rpartition(".")[0])
        swapped = InvariantLinear(linear.weight, linear.bias, tilings[shape])
        setattr(parent, name.rpartition(".")[2], swapped)
    if all(parameter.device.type == "cpu" for parameter in model.parameters()):
        make_activations_invariant(model)
    return tilings
