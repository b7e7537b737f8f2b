"""Triton's interpreter with matrix units like a GPU's: rows do not know of each other.

The interpreter hands `tl.dot` to numpy, whose sums depend on the shape of the operands and
which reads bfloat16 as integers.  A GPU's matrix unit does neither.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def _floats(operand: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    data: Any = operand.data
    if operand.dtype.scalar == tl.bfloat16:
        # The interpreter keeps a bfloat16 as the 16 bits that a float32 begins with.
        return (data.astype(np.uint32) << 16).view(np.float32)
    return data.astype(np.float32)


def _dot(builder: Any, a: Any, b: Any, total: Any, precision: Any, imprecise: Any) -> Any:
    """total + a b, the products of each element added in order of K."""
    left, right = _floats(a), _floats(b)
    out = total.data.copy()
    for i in range(left.shape[-1]):
        out += left[..., :, i : i + 1] * right[..., i : i + 1, :]
    return TensorHandle(out, total.dtype.scalar)


@contextmanager
def matrix_units() -> Iterator[None]:
    """Let the interpreter compute `tl.dot` row by row, in float32."""
    with patch.object(InterpreterBuilder, "create_dot", _dot):
        yield
