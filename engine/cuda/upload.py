"""From numbers on the host to tensors on the device, all of a step's in one copy."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


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
