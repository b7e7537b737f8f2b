"""Compiles all kernels for a GPU that need not be here, as a model would launch them.

    python -m experiments.gpu.compile 90 80

Tells how many registers, spilled bytes and bytes of shared memory each takes.  The
interpreter knows no types; this finds what it lets pass.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from engine.attention.plan import Segment
from engine.attention.triton_paged import HeadShape
from engine.batch import batch_of
from engine.cuda import gemm
from engine.cuda.decoder import Decoder
from engine.cuda.runner import CudaRunner
from engine.cuda.sampling import CudaSampler
from engine.cuda.trial import try_attention
from engine.kv_pool import KVPool
from engine.logits import SampleRow
from engine.request import SamplingParams
from experiments.gpu.models import ModelShape, random_model


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel for one GPU.

    Attributes:
        kernel: its name.
        constants: what it was compiled with.
        shared: bytes of shared memory that a program takes.
        matrix_units: instructions of matrix units in its code.
        layouts: how matrices are spread over threads, in which order rows are summed.
        fuses: whether the compiler may join a product and a sum into one instruction.
    """

    kernel: str
    constants: str
    shared: int
    matrix_units: int
    layouts: str
    fuses: bool


class _NoDevice:
    """A driver for a GPU that one can compile for and not launch on."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        # What is compiled is kept by device: another one for each kind.
        return self._target.arch

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiling(capability: int, done: list[Compiled]) -> Iterator[None]:
    """Let launches compile for a GPU of that compute capability (90: 9.0), and not run."""
    run, seen = JITFunction.run, set()

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        made = run(kernel, *args, grid=grid, warmup=True, **options)
        if made is not None and made.hash not in seen:
            seen.add(made.hash)
            code = made.asm["ptx"]
            constants = {k: v for k, v in options.items() if not hasattr(v, "data_ptr")}
            units = code.count("wgmma.mma_async") + code.count("mma.sync")
            layouts = [line for line in made.asm["ttgir"].splitlines() if line.startswith("#mma")]
            facts = made.metadata
            done.append(
                Compiled(
                    kernel.__name__,
                    str(constants),
                    facts.shared,
                    units,
                    "".join(layouts),
                    facts.enable_fp_fusion,
                )
            )
        return made

    with (
        patch.object(triton.runtime.driver, "_active", _NoDevice(capability)),
        patch.object(JITFunction, "run", compile_only),
    ):
        yield


def compile_all(capability: int, dtype: torch.dtype, head_dims: tuple[int, ...]) -> list[Compiled]:
    """Compile what models with heads of these sizes launch: decodes, prefills, choices."""
    done: list[Compiled] = []
    cpu = torch.device("cpu")
    with (
        compiling(capability, done),
        patch.object(gemm, "usable_tiles", lambda n, k, like: gemm._tiles(n, like.dtype)),
    ):
        for dim in head_dims:
            shape = ModelShape("", 2048, 512, 1, 4, 1, dim, 512, False)
            pool = KVPool(shape.kv(dtype), 2100, 16, cpu)
            decoder = Decoder(random_model(shape, dtype, cpu, 2112), 2112)
            runner = CudaRunner(decoder, pool, 1, 2112)
            for rows in (1, 40, 2100):
                table = list(range(-(-rows // 16)))
                runner.forward(batch_of([1] * rows, [Segment(table, 0, rows)], [rows - 1]))
        rows_of = [SampleRow(SamplingParams(temperature=t), 0, [1], []) for t in (0.0, 1.0)]
        CudaSampler(512, cpu).choose(torch.zeros(2, 512), rows_of, [0, 0])
    return done


def compile_attention(capability: int, dtype: torch.dtype, head_dim: int) -> list[Compiled]:
    """Compile the attention of heads of one size alone, for decodes and prefills."""
    done: list[Compiled] = []
    with compiling(capability, done):
        try_attention(HeadShape.of(4, 1, head_dim), dtype, torch.device("cpu"), 16, 1024)
    return done


def main() -> None:
    """Print a line for each kernel."""
    for argument in sys.argv[1:] or ["90"]:
        for made in compile_all(int(argument), torch.bfloat16, (64, 128, 256)):
            print(
                f"{argument}  {made.kernel:18}{made.shared:8} B shared"
                f"{made.matrix_units:5} matrix instructions  {made.constants}"
            )


if __name__ == "__main__":
    main()
