"""What has been sampled in a step: known to the host, or still on its way from a device."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Sampled(Protocol):
    """One step's tokens."""

    @property
    def tokens(self) -> Tensor:
        """int64 [rows], where the model is: what the next step computes, unless ``changed``.

        Of a row that failed, any token of the vocabulary.
        """
        ...

    @property
    def changed(self) -> Sequence[int]:
        """The rows for which :meth:`fetch` found another token than ``tokens`` has."""
        ...

    def fetch(self) -> Sequence[int | Exception]:
        """Wait for them: in row order a token, or why there is none. Asked once."""
        ...


class Known:
    """Tokens that are known."""

    changed: Sequence[int] = ()

    def __init__(self, chosen: Sequence[int | Exception]) -> None:
        """Tell in row order a token, or why there is none."""
        self._chosen = chosen

    @property
    def tokens(self) -> Tensor:
        """int64 [rows], on the CPU."""
        return torch.tensor([0 if isinstance(one, Exception) else one for one in self._chosen])

    def fetch(self) -> Sequence[int | Exception]:
        """Return them."""
        return self._chosen
