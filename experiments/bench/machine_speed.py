"""What this machine could do at most, so that the engine's figures can be seen as shares of it."""

import json
import math
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from engine.loader import resolve
from experiments.bench.table import Row

# Many times what caches hold.
_ARRAY_BYTES, _SIDE, _TRIES = 1 << 29, 2048, 10


def measure(
    model: str | None,
    dtypes: Sequence[str],
    threads: int | None,
    array_bytes: int = _ARRAY_BYTES,
    side: int = _SIDE,
) -> Iterator[Row]:
    """Yield the rates of reading and of multiplying, and the limits that follow for a model.

    Each is the best of some tries, since a limit is asked for. One request cannot go faster
    than its weights are read, once a token; a long prompt not faster than two operations a
    weight and token are computed.

    Args:
        model: as for ``tidegate serve``.
        dtypes: of the weights.
        threads: that compute; torch's choice if None.
        array_bytes: size of what is read.
        side: of the square matrices that are multiplied.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    note = f"{torch.get_num_threads()} threads, best of {_TRIES}"
    array = torch.ones(array_bytes // 4)
    bandwidth = array_bytes / min(_best(array.sum), _best(partial(torch.dot, array, array)))
    yield Row("machine, reading", bandwidth / 1e9, "GB/s", note)
    weights = weights_read(resolve(model))
    for name in dtypes:
        dtype = getattr(torch, name)
        matrix = torch.ones(side, side, dtype=dtype)
        operations = 2 * side**3 / _best(partial(torch.mm, matrix, matrix))
        yield Row(f"machine, multiplying {name}", operations / 1e9, "GFLOP/s", note)
        one = bandwidth / (weights * dtype.itemsize)
        yield Row(f"limit {name}, 1 concurrent", one, "output tokens/s", "from reading")
        many = operations / (2 * weights)
        yield Row(f"limit {name}, prefill", many, "prompt tokens/s", "from multiplying")


def weights_read(folder: Path) -> int:
    """How many weights a token needs: all, less a table of embeddings that is only looked up."""
    sizes: dict[str, int] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        sizes |= {name: math.prod(tensor["shape"]) for name, tensor in header.items()}
    if "lm_head.weight" in sizes:
        return sum(n for name, n in sizes.items() if not name.endswith("embed_tokens.weight"))
    return sum(sizes.values())


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some tries, after one that warms up."""
    work()
    took = []
    for _ in range(_TRIES):
        begin = time.perf_counter()
        work()
        took.append(time.perf_counter() - begin)
    return min(took)
