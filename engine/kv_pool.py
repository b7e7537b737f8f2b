"""KVPool: the tensors that hold keys and values, block by block."""

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
    """K and V of every layer, [slots, kv_heads, head_dim], slot = block * block_tokens + offset.

    One block more than asked for is kept, the null block: it is zero and never
    written.  Padding reads from it, so that a padded key is always finite; what an
    earlier owner left in a block can never reach another request's attention.
    """

    def __init__(
        self, shape: KVShape, num_blocks: int, block_tokens: int, device: torch.device
    ) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.null_slot = num_blocks * block_tokens
        size = (shape.layers, self.null_slot + block_tokens, shape.kv_heads, shape.head_dim)
        self._keys = torch.zeros(size, dtype=shape.dtype, device=device)
        self._values = torch.zeros(size, dtype=shape.dtype, device=device)

    @property
    def device(self) -> torch.device:
        """Where the pool lies."""
        return self._keys.device

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store K and V [n, kv_heads, head_dim] at slots [n] of a layer."""
        self._keys[layer].index_copy_(0, slots, keys)
        self._values[layer].index_copy_(0, slots, values)

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return K and V, each [*slots.shape, kv_heads, head_dim], in float32."""
        flat, size = slots.reshape(-1), (*slots.shape, *self._keys.shape[2:])
        keys = self._keys[layer].index_select(0, flat).float().view(size)
        values = self._values[layer].index_select(0, flat).float().view(size)
        return keys, values
