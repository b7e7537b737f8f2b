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

# Several times what caches hold, and yet read in the time that a busy system lets a thread run.
_ARRAY_BYTES, _SIDE, _TRIES = 1 << 28, 1024, 50


def measure(
    model: str | None,
    dtypes: Sequence[str],
    threads: int | None,
    array_bytes: int = _ARRAY_BYTES,
    side: int = _SIDE,
) -> Iterator[Row]:
    """Yield the rates of reading and of multiplying, and the limits that follow for a model.

    Each is the best of some tries, since a limit is asked for. One request cannot go faster
    than all weights are read, once a token; a long prompt not faster than two operations are
    done for each of its tokens and each weight of the layers, attention not counted.

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
    layers, head = weights_of(resolve(model))
    for name in dtypes:
        dtype = getattr(torch, name)
        matrix = torch.ones(side, side, dtype=dtype)
        operations = 2 * side**3 / _best(partial(torch.mm, matrix, matrix))
        yield Row(f"machine, multiplying {name}", operations / 1e9, "GFLOP/s", note)
        one = bandwidth / ((layers + head) * dtype.itemsize)
        yield Row(f"limit {name}, 1 concurrent", one, "output tokens/s", "from reading")
        many = operations / (2 * layers)
        yield Row(f"limit {name}, prefill", many, "prompt tokens/s", "from multiplying")


def weights_of(folder: Path) -> tuple[int, int]:
    """How many weights a model has in its layers, and in the head that makes logits.

    A table of embeddings is only looked up, and counts where it is the head too.
    """
    sizes: dict[str, int] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        sizes |= {name: math.prod(tensor["shape"]) for name, tensor in header.items()}
    table = sum(n for name, n in sizes.items() if name.endswith("embed_tokens.weight"))
    head = sizes.get("lm_head.weight", 0)
    return sum(sizes.values()) - table - head, head or table


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some tries, after one that warms up."""
    work()
    took = []
    for _ in range(_TRIES):
        begin = time.perf_counter()
        work()
        took.append(time.perf_counter() - begin)
    return min(took)
