"""Roofline: an estimate of how long a step takes, from data sheets alone. Nothing is measured.

A step takes as long as its arithmetic or as what it reads from memory, whichever is longer
(Williams, Waterman and Patterson, *Roofline*, CACM 2009), each at a share of what the device's
maker publishes, plus what every step costs. Such estimates are easily off by a third: use them
to compare policies, and a fit or a table to size a cluster.

Bandwidth, memory and dense bfloat16 arithmetic are those of NVIDIA's data sheets: H100 Tensor
Core GPU (SXM5), H200 Tensor Core GPU, A100 80GB (SXM), L40S and L4. Where a sheet names arithmetic
with sparsity, half of it is taken. Shapes are those of the models' own config.json.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

BYTES: Final = 2  # of a number in bfloat16
POOL_SHARE: Final = 0.9
"""Of the memory that the weights leave, for keys and values: `engine.memory.GPU_SHARE`, which is
not imported since that takes torch."""
QUERY_TILE: Final = 128
"""Tokens of a prompt for which attention reads keys and values once (FlashAttention's tiles)."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, as its data sheet has it.

    Attributes:
        bytes_s: of its memory, read.
        flops_s: dense bfloat16 operations.
        link_bytes_s: to other GPUs of its machine, one way.
        host_bytes_s: to and from host memory, one way.
        bytes: of its memory.
    """

    bytes_s: float
    flops_s: float
    link_bytes_s: float
    host_bytes_s: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder of the Llama kind.

    Attributes:
        layers, hidden, feed_forward, vocab: of the model.
        heads, kv_heads, head_dim: of its attention.
    """

    layers: int
    hidden: int
    feed_forward: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def layer_weights(self) -> int:
        """Weights of all layers' linear maps."""
        attention = (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        return self.layers * self.hidden * (attention + 3 * self.feed_forward)

    @property
    def head_weights(self) -> int:
        """Weights of the map to logits."""
        return self.hidden * self.vocab

    @property
    def kv_bytes(self) -> int:
        """Of one token's keys and values."""
        return 2 * BYTES * self.layers * self.kv_heads * self.head_dim


DEVICES: Final[Mapping[str, Device]] = {
    "h100-sxm": Device(3.35e12, 989.5e12, 450e9, 64e9, 80e9),
    "h200": Device(4.8e12, 989.5e12, 450e9, 64e9, 141e9),
    "a100-80g": Device(2.039e12, 312e12, 300e9, 32e9, 80e9),
    "l40s": Device(864e9, 362e12, 32e9, 32e9, 48e9),
    "l4": Device(300e9, 121e12, 32e9, 32e9, 24e9),
}

SHAPES: Final[Mapping[str, Shape]] = {
    "smollm2-135m": Shape(30, 576, 1536, 49152, 9, 3, 64),
    "llama-1b": Shape(16, 2048, 8192, 128256, 32, 8, 64),
    "llama-8b": Shape(32, 4096, 14336, 128256, 32, 8, 128),
    "llama-70b": Shape(80, 8192, 28672, 128256, 64, 8, 128),
}


@dataclass(frozen=True, slots=True)
class Roofline:
    """An estimate, not a measurement; the efficiencies and overheads are assumptions.

    Attributes:
        shape: of the model.
        device: each of the GPUs of one replica.
        gpus: that one replica's weights are split over (tensor parallel), >= 1.
        compute: share of the device's arithmetic that is reached, above 0, at most 1.
        memory: share of its bandwidth, likewise.
        step_s: of every step: planning, launching kernels, sampling, text; >= 0.
        sequence_s: of each sequence in it, >= 0.
        reduce_s: of each of the two sums over GPUs that a layer has, what the link takes for
            their bytes left out; >= 0.
        block_tokens: tokens in a block, >= 1.

    Raises:
        ValueError: a field is out of its range.
    """

    shape: Shape
    device: Device
    gpus: int = 1
    compute: float = 0.55
    memory: float = 0.75
    step_s: float = 1e-3
    sequence_s: float = 2e-6
    reduce_s: float = 12e-6
    block_tokens: int = 16
    _prices: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("gpus", "block_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: a number from 1 is needed")
        for name in ("compute", "memory"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}: above 0 and at most 1")
        for name in ("step_s", "sequence_s", "reduce_s"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}: a number from 0 is needed")
        object.__setattr__(self, "_prices", self._work_out())

    @property
    def blocks(self) -> int:
        """Blocks of KV memory that fit, counted as the engine does; 0 if the weights do not fit."""
        shape = self.shape
        weights = BYTES * (shape.layer_weights + 2 * shape.head_weights)
        free = self.gpus * self.device.bytes - weights
        return max(0, int(free * POOL_SHARE) // (shape.kv_bytes * self.block_tokens))

    def seconds(self, prefill: int, pairs: int, decodes: int, context: int) -> float:
        """As `StepTime.seconds`."""
        rows = prefill + decodes
        if not rows:
            return 0.0
        row, logit, pair, weights, token, tiled, fixed, moved, each = self._prices
        sampled = decodes + (prefill > 0)
        arithmetic = rows * row + sampled * logit + (pairs + context) * pair
        read = weights + context * token + pairs * tiled
        longer = arithmetic if arithmetic > read else read
        return longer + fixed + rows * moved + sampled * each

    def copies(self, blocks: int) -> float:
        """As `StepTime.copies`."""
        own = blocks * self.block_tokens * self.shape.kv_bytes / self.gpus
        return own / (self.device.host_bytes_s * self.memory)

    def _work_out(self) -> tuple[float, ...]:
        """Seconds of each kind of work, all that does not change from step to step."""
        shape, device = self.shape, self.device
        flop = 1.0 / (device.flops_s * self.compute * self.gpus)
        byte = 1.0 / (device.bytes_s * self.memory * self.gpus)
        weights = BYTES * (shape.layer_weights + shape.head_weights)
        # A query's products with a key, and the sum of values: two operations each a number.
        pair = 4 * shape.layers * shape.heads * shape.head_dim
        sums = 2 * shape.layers if self.gpus > 1 else 0
        # A ring moves each byte about twice, once to add up and once to tell.
        share = 2 * (self.gpus - 1) / self.gpus
        moved = sums * share * BYTES * shape.hidden / (device.link_bytes_s * self.memory)
        return (
            2 * shape.layer_weights * flop,
            2 * shape.head_weights * flop,
            pair * flop,
            weights * byte,
            shape.kv_bytes * byte,
            shape.kv_bytes * byte / QUERY_TILE,
            self.step_s + sums * self.reduce_s,
            moved,
            self.sequence_s,
        )
