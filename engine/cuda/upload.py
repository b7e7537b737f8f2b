"""The device: which one is launched on, and a step's numbers there in one copy."""

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
