"""KVPool: the tensors that hold keys and values, block by block."""

import contextlib
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one token's keys and values look like.

    Attributes:
        layers: decoder layers.
        kv_heads: key/value heads of a layer.
        head_dim: elements of a head.
        dtype: element type of the pool.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


class KVPool:
    """K and V of every layer: [blocks, block_tokens, 2, kv_heads, head_dim].

    One block more than asked for is kept, the null block, which is nobody's: torch's
    kernels read it for padding, and CUDA graphs store their padding rows there.  What an
    earlier owner left in a block, even a value that is no number, never reaches another
    request's attention: torch's path clears a block that gets a new owner, since it reads
    beyond a sequence's end; the other kernels do not read there.
    """

    def __init__(
        self, shape: KVShape, num_blocks: int, block_tokens: int, device: torch.device
    ) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.null_block = num_blocks
        size = (shape.layers, num_blocks + 1, block_tokens, 2, shape.kv_heads, shape.head_dim)
        self._data = _zeros(size, shape.dtype, device)

    @property
    def device(self) -> torch.device:
        """Where the pool lies."""
        return self._data.device

    @property
    def data(self) -> Tensor:
        """[layers, blocks + 1, block_tokens, 2, kv_heads, head_dim], the null block last."""
        return self._data

    @property
    def address(self) -> int:
        """Where the first layer begins in memory, for kernels with a layout of their own.

        Such kernels may arrange a block of a layer as they like within its bytes.
        """
        return self._data.data_ptr()

    @property
    def layer_bytes(self) -> int:
        """Bytes from one layer to the next."""
        return self._data.stride(0) * self._data.element_size()

    def host_blocks(self, count: int) -> Tensor:
        """Return room for ``count`` whole blocks in host memory, pinned if this is on a GPU."""
        size = (count, self.shape.layers, *self._data.shape[2:])
        return torch.empty(size, dtype=self.shape.dtype, pin_memory=self.device.type == "cuda")

    def copy_out(self, blocks: Sequence[int], host: Tensor, slots: Sequence[int]) -> None:
        """Copy whole blocks of all layers into slots of ``host``; on a GPU, in stream order."""
        for block, slot in zip(blocks, slots, strict=True):
            host[slot].copy_(self._data[:, block], non_blocking=True)

    def copy_in(self, host: Tensor, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy slots of ``host`` into whole blocks of all layers; on a GPU, in stream order."""
        for block, slot in zip(blocks, slots, strict=True):
            self._data[:, block].copy_(host[slot], non_blocking=True)

    def clear(self, blocks: Tensor) -> None:
        """Zero whole blocks [n] in all layers."""
        self._data.index_fill_(1, blocks, 0)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store K and V [n, kv_heads, head_dim] of a layer at slots [n].

        A slot is block * block_tokens + offset.
        """
        self._data[layer].flatten(0, 1).index_copy_(0, slots, torch.stack((keys, values), 1))

    def read(self, layer: int, tables: Tensor, keys: int) -> tuple[Tensor, Tensor]:
        """Return the first ``keys`` K and V of block tables [n, blocks], in float32.

        Each is [n, keys, kv_heads, head_dim].
        """
        found = self._data[layer].index_select(0, tables.flatten()).float()
        found = found.view(len(tables), -1, *found.shape[2:])[:, :keys]
        return found[:, :, 0], found[:, :, 1]


def _zeros(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Like ``torch.zeros``, but on a CPU a page takes memory only when it is first written.

    A pool is made as large as it may ever be needed; most of it may never be.
    """
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    elements = math.prod(size)
    # Private, or a forked process would write into its parent's.
    pages = mmap.mmap(-1, elements * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # where a system has no huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype, count=elements).view(*size)
