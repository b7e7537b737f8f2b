"""The device: which one is launched on, and a step's numbers there and back in one copy each."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the one that kernels are launched on, whatever the thread's own is."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def upload(arrays: Sequence[Array], device: torch.device) -> list[Tensor]:
    """Copy arrays of one dtype and any shapes to the device, without waiting for it.

    The returned tensors are parts of one.
    """
    sizes = [array.size for array in arrays]
    flat = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays]))
    if device.type == "cuda":
        # The allocator of pinned memory takes a buffer back only when the copy is done.
        flat = flat.pin_memory().to(device, non_blocking=True)
    parts = torch.split(flat, sizes)
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


class Download:
    """A tensor on its way from the device to the host.

    The copy is queued behind what the device has been given so far, and is not held up by what
    it is given later.
    """

    def __init__(self, tensor: Tensor) -> None:
        """Begin to copy ``tensor``, whose device is current, without waiting for it."""
        self._host, self._done = tensor, None
        if tensor.device.type == "cuda":
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record()

    def wait(self) -> Array:
        """Return it when it is there."""
        if self._done is not None:
            self._done.synchronize()
        found: Array = self._host.cpu().numpy()
        return found
