"""Activations whose bits do not depend on where in a tensor an element lies.

torch computes what whole vectors leave over, at the end of a tensor or of a thread's part of
it, element by element, by another exponential that rounds otherwise now and then.  So which
bits an element gets would depend on how many rows come before it.
"""

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

_VECTORS: Final = 64
"""Elements that torch takes at once, at most: two vectors of AVX-512, of 16-bit elements."""

_PART: Final = 1 << 14
"""Elements that torch leaves to one thread; a multiple of those taken at once."""


_ELEMENTWISE: Final = (
    nn.ELU, nn.GELU, nn.Hardswish, nn.LeakyReLU, nn.Mish, nn.ReLU, nn.ReLU6, nn.SiLU, nn.Sigmoid,
    nn.Softplus, nn.Tanh,
)  # fmt: skip


class InvariantActivation(nn.Module):
    """Applies an elementwise function to whole vectors only."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        count = x.numel()
        whole = functional.pad(x.reshape(-1), (0, -count % _VECTORS))
        parts = [self._function(part) for part in torch.split(whole, _PART)]
        return torch.cat(parts)[:count].view(x.shape)


def make_activations_invariant(model: nn.Module) -> None:
    """Wrap every activation in ``model`` that is a module of its own, in place."""
    # Some models have one object in many places.
    found = [(name, m) for name, m in model.named_modules(remove_duplicate=False) if _is_known(m)]
    for name, activation in found:
        parent = model.get_submodule(name.rpartition(".")[0])
        setattr(parent, name.rpartition(".")[2], InvariantActivation(activation))


def _is_known(module: nn.Module) -> bool:
    """Whether it is an elementwise function, as far as anybody can know."""
    return type(module) in _ELEMENTWISE or type(module).__module__ == "transformers.activations"
