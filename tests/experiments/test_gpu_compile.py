"""All kernels compile for a GPU that is not here: the interpreter knows no types."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

# In a process of its own: in this one kernels are the interpreter's.
PROGRAM = """
import dataclasses, json, sys, torch
from experiments.gpu.compile import compile_all, compile_attention
kinds = (90, (80,)), (80, (128,))
made = [[dataclasses.asdict(one) for one in compile_all(of, torch.bfloat16, d)] for of, d in kinds]
made.append([dataclasses.asdict(one) for one in compile_attention(89, torch.float32, 256)])
print(json.dumps(made))
"""
KERNELS = {
    "add_rms_norm", "add_segments", "add_splits", "attend", "draw", "gemm", "rotate_and_store",
    "silu_times",
}  # fmt: skip
A100_SHARED = 163 << 10
SMALL_SHARED = 99 << 10  # of GPUs with compute capability 8.6 and 8.9


def test_every_kernel_compiles_and_fits(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *whole, widest = json.loads(done.stdout.splitlines()[-1])
    for made in whole:
        check(made)
    assert len({one["kernel"] for one in widest}) == 2
    assert max(one["shared"] for one in widest) <= SMALL_SHARED


def check(made: list[dict[str, Any]]) -> None:
    """What must hold of the kernels for one GPU."""
    assert {one["kernel"] for one in made} == KERNELS
    assert max(one["shared"] for one in made) <= A100_SHARED
    on_units = {one["kernel"] for one in made if one["matrix_units"]}
    assert on_units == {"gemm", "attend"}
    # With and without programs that share a row's keys it must be the same arithmetic.
    attends = [one["layouts"] for one in made if one["kernel"] == "attend"]
    assert len(attends) == 2
    assert attends[0] == attends[1] != ""
    # Two compilations of a kernel must not round at different places.
    assert {one["kernel"] for one in made if one["fuses"]} == {"gemm", "draw"}
