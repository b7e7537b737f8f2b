"""Linear layers of transformers' models over the invariant product."""

import logging

from torch import Tensor, nn

from engine.cuda.gemm import Gemms, InvariantGemm, Order
from engine.linear import InvariantLinear, NotInvariant, Shape, Tiling, find_tiling

logger = logging.getLogger(__name__)


class TiledLinear(nn.Module):
    """A drop-in for ``nn.Linear``: y = x W^T + b, the same bits for a row in any batch."""

    def __init__(self, gemm: InvariantGemm) -> None:
        super().__init__()
        self.out_features, self.in_features = gemm.weight.shape
        self._gemm = gemm

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        out = self._gemm(x.reshape(-1, self.in_features))
        return out.reshape(*x.shape[:-1], self.out_features)


def make_tiled(model: nn.Module) -> dict[Shape, Order | Tiling]:
    """Swap every ``nn.Linear`` in ``model``, in place.

    Where the device's matrix units do not keep a row's bits in Triton's product, the
    library's is used within the row counts between which its bits stay the same.

    Returns the order or the tiling of each shape (out_features, in_features, has a bias),
    which is part of the replica's numeric fingerprint.

    Raises:
        NotInvariant: neither keeps a layer's bits; ``model`` is as it was.
    """
    gemms = Gemms()
    ways: dict[Shape, Order | Tiling] = {}
    linears = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    for _, linear in linears:
        if _shape(linear) not in ways:
            ways[_shape(linear)] = _way(gemms, linear)
    # Only now, when nothing can fail any more: a model half swapped is of no use to anyone.
    for name, linear in linears:
        parent = model.get_submodule(name.rpartition(".")[0])
        setattr(parent, name.rpartition(".")[2], _swapped(gemms, linear, ways[_shape(linear)]))
    return ways


def _shape(linear: nn.Linear) -> Shape:
    return linear.out_features, linear.in_features, linear.bias is not None


def _way(gemms: Gemms, linear: nn.Linear) -> Order | Tiling:
    weight = linear.weight.detach()
    n, k = weight.shape
    try:
        return gemms.of(weight.contiguous(), None).order
    except NotInvariant as error:
        logger.warning("%s; trying the library's", error)
        return find_tiling(n, k, weight, linear.bias is not None)


def _swapped(gemms: Gemms, linear: nn.Linear, way: Order | Tiling) -> nn.Module:
    if isinstance(way, Tiling):
        return InvariantLinear(linear.weight, linear.bias, way)
    parameter: nn.Parameter | None = linear.bias
    bias = None if parameter is None else parameter.detach()
    return TiledLinear(gemms.of(linear.weight.detach().contiguous(), bias))
