"""The C++ library: compiled for this machine when it is first used, then kept in the cache.

It is compiled for exactly the processor that runs it, so it is made where it is needed
and not where the package was built. Nothing but a C++20 compiler is needed: the library
has a plain C interface and knows neither Python nor torch.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from enum import IntEnum
from functools import cache
from pathlib import Path

from filelock import FileLock

from engine.demo_model import cache_root

logger = logging.getLogger(__name__)

_SOURCES = Path(__file__).parent
# Without contraction two instances of one template cannot round differently.
_FLAGS = ("-std=c++20", "-O3", "-march=native", "-ffp-contract=off", "-fPIC", "-shared", "-pthread")
_NEEDED = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd")
_COMPILERS = ("c++", "g++", "clang++")
_MOST_SAID = 300


class NativeUnavailable(RuntimeError):
    """The C++ kernels cannot be used.

    Attributes:
        reason: why.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the C++ kernels cannot be used: {self.reason}"


class Element(IntEnum):
    """``Element`` of kernels.cpp: what a decoder computes with."""

    FLOAT32 = 0
    BFLOAT16 = 1
    MATRIX_BFLOAT16 = 2


class Shape(ctypes.Structure):
    """``Shape`` of decoder.h."""

    _fields_ = (
        ("layers", ctypes.c_int32),
        ("hidden", ctypes.c_int32),
        ("inner", ctypes.c_int32),
        ("query_heads", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("dim", ctypes.c_int32),
        ("vocab", ctypes.c_int32),
        ("positions", ctypes.c_int32),
        ("block_tokens", ctypes.c_int32),
        ("head_norms", ctypes.c_int32),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
    )


class Step(ctypes.Structure):
    """``Step`` of decoder.h; pointers as addresses."""

    _fields_ = (
        ("rows", ctypes.c_int32),
        ("segments", ctypes.c_int32),
        ("tokens", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
    )


class Draw(ctypes.Structure):
    """``Draw`` of kernels.cpp; the row as an address."""

    _fields_ = (
        ("row", ctypes.c_void_p),
        ("key", ctypes.c_int64),
        ("top_k", ctypes.c_int64),
        ("top_p", ctypes.c_double),
        ("log_min_p", ctypes.c_double),
        ("temperature", ctypes.c_double),
    )


class Library:
    """The loaded library.

    Attributes:
        calls: its functions, by their names in kernels.cpp.
        digest: of all that decides what its results are: sources, compiler, processor.
        matrix_unit: whether this process may use the processor's unit for products of bfloat16
            matrices. A system may keep it from programs that run on a processor that has it.
    """

    def __init__(self, path: Path, digest: str) -> None:
        self.digest = digest
        self.calls = ctypes.CDLL(str(path))
        pointer, flag, number = ctypes.c_void_p, ctypes.c_bool, ctypes.c_int
        signatures = {
            "matrix_unit": (flag, []),
            "decoder": (pointer, [pointer, number, number]),
            "free": (None, [pointer]),
            "set": (flag, [pointer, number, number, pointer, pointer]),
            "set_ends": (flag, [pointer] * 7),
            "hidden": (flag, [pointer, pointer, ctypes.c_int64, pointer, pointer]),
            "logits": (flag, [pointer, pointer, pointer, number, pointer]),
            "largest": (None, [pointer, pointer, number, number, pointer, pointer]),
            "candidates": (
                ctypes.c_int64,
                [pointer, pointer, number, number, pointer, pointer, ctypes.c_int64],
            ),
        }
        for name, (returns, takes) in signatures.items():
            function = getattr(self.calls, f"tidegate_{name}")
            function.restype, function.argtypes = returns, takes
        self.matrix_unit: bool = self.calls.tidegate_matrix_unit()


@cache
def load(root: Path | None = None) -> Library:
    """Return the library, compiled now if this machine has not done so before.

    Args:
        root: the cache folder; :func:`engine.demo_model.cache_root` by default.

    Raises:
        NativeUnavailable: the processor lacks AVX-512, there is no compiler, or it failed.
    """
    processor = _processor()
    compiler = _compiler()
    digest = hashlib.sha256(repr((_sources(), _FLAGS, _version(compiler), processor)).encode())
    key = digest.hexdigest()[:16]
    # A home that is not known, a file system without locks: each has an error of its own.
    try:
        path = (root or cache_root()) / "kernels" / f"{key}.so"
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            return _loaded(compiler, path, key)
    except (OSError, RuntimeError) as error:
        if isinstance(error, NativeUnavailable):
            raise
        raise NativeUnavailable(f"the cache folder cannot be used: {error}") from error


def _loaded(compiler: list[str], path: Path, key: str) -> Library:
    """Load the library, compiled before or now; a file that cannot be loaded is made anew."""
    if path.exists():
        try:
            return Library(path, key)
        except OSError as error:
            logger.warning("%s is compiled again, since it cannot be loaded: %s", path, error)
    _compile(compiler, path)
    return Library(path, key)


def _processor() -> str:
    """Name and features of the processor; replicas on equal ones may go on for each other."""
    if platform.machine() != "x86_64":
        raise NativeUnavailable(f"they are for x86-64, this is {platform.machine()}")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError as error:
        raise NativeUnavailable("what the processor can do is not known") from error
    said = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    flags = said.get("flags", "").split()
    if lacking := [name for name in _NEEDED if name not in flags]:
        raise NativeUnavailable(f"the processor lacks {', '.join(lacking)}")
    return f"{said.get('model name')} {' '.join(sorted(flags))}"


def _compiler() -> list[str]:
    """The command that compiles, in words: ``CXX`` may name a wrapper too."""
    named = os.environ.get("CXX")
    for command in (shlex.split(named),) if named else ([name] for name in _COMPILERS):
        if command and (found := shutil.which(command[0])):
            return [found, *command[1:]]
    raise NativeUnavailable(f"there is no C++ compiler ({named or ', '.join(_COMPILERS)})")


def _version(compiler: list[str]) -> str:
    try:
        return subprocess.run(
            [*compiler, "--version"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NativeUnavailable(f"{shlex.join(compiler)} does not run: {error}") from error


def _sources() -> list[tuple[str, bytes]]:
    files = sorted([*_SOURCES.glob("*.h"), *_SOURCES.glob("*.cpp")])
    return [(file.name, file.read_bytes()) for file in files]


def _compile(compiler: list[str], path: Path) -> None:
    """Compile beside ``path`` and move the result there, so that it is never half written."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [*compiler, *_FLAGS, str(_SOURCES / "kernels.cpp"), "-o", str(made)]
        try:
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        except subprocess.CalledProcessError as error:
            said = " ".join(error.stderr.split())[:_MOST_SAID]
            raise NativeUnavailable(f"{shlex.join(compiler)} failed: {said}") from error
        except subprocess.TimeoutExpired as error:
            raise NativeUnavailable(
                f"{shlex.join(compiler)} took more than {error.timeout:.0f} s"
            ) from error
        made.replace(path)
