"""The peers that are known, and how each is started."""

import ctypes.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PACKAGES = Path(__file__).parents[2]
_VLLM_KV_GIB = "2"
# Settings of thread pools that were meant for the caller.
_THREADS = ("OMP_", "KMP_", "GOMP_", "MKL_", "VLLM_", "LD_PRELOAD")


@dataclass(frozen=True, slots=True)
class Start:
    """How a peer is started.

    Attributes:
        name: as in tables.
        command: less the settings, which come last.
        variables: of its environment.
        notes: what is worth knowing of how it is set up.
    """

    name: str
    command: tuple[str, ...]
    variables: Mapping[str, str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A peer that cannot be measured here, and why."""

    name: str
    reason: str


def tidegate() -> Start:
    """This engine, in the environment of the caller."""
    return Start("Tidegate", _module(sys.executable, "tidegate_peer"), _variables(_PACKAGES))


def transformers() -> Start:
    """transformers' continuous batching, in the environment of the caller."""
    notes = (
        "attention sdpa; its block tables, CUDA graphs and asynchronous batching exist on "
        "accelerators only",
    )
    command = _module(sys.executable, "transformers_peer")
    return Start("transformers", command, _variables(_PACKAGES), notes)


def vllm(
    python: Path | None, tcmalloc: str | None, threads: int, packages: Path
) -> Start | LeftOut:
    """vLLM's build for CPUs, in an environment of its own.

    Args:
        python: of that environment; None leaves it out.
        tcmalloc: file or name of the library; None looks for it.
        threads: that compute, each bound to a core.
        packages: an empty folder, through which its Python finds this package and no other.
    """
    if python is None:
        return LeftOut("vLLM", "no --vllm PYTHON; `python -m experiments.peers setup` makes one")
    if not python.exists():
        return LeftOut("vLLM", f"there is no {python}")
    (packages / "experiments").symlink_to(_PACKAGES / "experiments")
    openmp = python.parent.parent / "lib" / "libiomp5.so"
    malloc = tcmalloc or ctypes.util.find_library("tcmalloc_minimal")
    preload = [str(found) for found in (malloc, openmp if openmp.exists() else None) if found]
    cores = sorted(os.sched_getaffinity(0))[:threads]
    variables = _variables(packages) | {
        "LD_PRELOAD": ":".join(preload),
        "VLLM_CPU_KVCACHE_SPACE": _VLLM_KV_GIB,
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
    }
    notes = (
        f"threads bound to cores {variables['VLLM_CPU_OMP_THREADS_BIND']}, {_VLLM_KV_GIB} GiB "
        "of K and V, prefix cache off, preloaded: "
        + (", ".join(Path(library).name for library in preload) or "nothing"),
    )
    return Start("vLLM", _module(str(python), "vllm_peer"), variables, notes)


def _module(python: str, name: str) -> tuple[str, ...]:
    return (python, "-m", f"experiments.peers.{name}")


def _variables(packages: Path) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_THREADS)}
    return inherited | {"PYTHONPATH": str(packages), "HF_HUB_OFFLINE": "1"}
