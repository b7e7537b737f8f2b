"""Backends: by what a model is computed on this machine."""

import importlib.util
import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil
import torch
from transformers import PreTrainedModel

from engine.attention.paged import PagedAttention
from engine.kv_pool import KVPool
from engine.linear import NotInvariant, make_invariant
from engine.native.library import NativeUnavailable, load
from engine.native.model import NativeModel
from engine.native.runner import NativeRunner
from engine.native.sampler import NativeSampler
from engine.request import InvalidParam
from engine.runner import ModelRunner, Runner
from engine.sampling import Sampler

logger = logging.getLogger(__name__)

KERNELS = ("auto", "native", "triton", "torch")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a backend may prepare for.

    Attributes:
        block_tokens: tokens a block of the pools.
        max_num_seqs: sequences a step.
        max_model_len: tokens of the longest sequence.
        threads: CPU threads that compute.
    """

    block_tokens: int
    max_num_seqs: int
    max_model_len: int
    threads: int


class TritonUnavailable(RuntimeError):
    """The Triton kernels cannot be used.

    Attributes:
        reason: why.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the Triton kernels cannot be used: {self.reason}"


class Backend(Protocol):
    """A loaded model that can be run over any pool.

    Attributes:
        name: one of ``KERNELS`` but auto.
        dtype: of K and V.
    """

    name: str
    dtype: torch.dtype

    def runner(self, pool: KVPool) -> Runner:
        """Return a runner over ``pool``; only one of a backend's runners may run at a time."""
        ...

    def sampler(self, vocab: int) -> Sampler:
        """Return what chooses tokens from its runners' logits, when none of them runs."""
        ...

    def identity(self) -> object:
        """Return what decides the bits of its results, besides the weights and their dtype.

        To be asked after a runner was made.
        """
        ...


class TorchBackend:
    """transformers' model with linears and attention of torch that keep the same bits."""

    name = "torch"

    def __init__(self, model: PreTrainedModel, threads: int) -> None:
        """Take ``model`` over, for so many threads on a CPU.

        Raises:
            NotInvariant: no way was found to keep a layer's bits.
        """
        torch.set_num_threads(threads)
        self.dtype: torch.dtype = model.dtype
        self._model = model
        self._tilings = make_invariant(model)
        self._decode_tile = 0

    def runner(self, pool: KVPool) -> ModelRunner:
        """Return a runner over ``pool``."""
        attention = PagedAttention(pool, self._model.config.num_attention_heads)
        self._decode_tile = attention.decode_tile
        return ModelRunner(self._model, pool, attention)

    def sampler(self, vocab: int) -> Sampler:
        """Return torch's sampler."""
        return Sampler(vocab, self._model.device)

    def identity(self) -> object:
        """Return the versions, the processor, the threads and how the kernels are used."""
        device = self._model.device
        return (
            torch.__version__,
            _processor(device),
            torch.get_num_threads() if device.type == "cpu" else 0,
            sorted(self._tilings.items()),
            self._decode_tile,
        )


class NativeBackend:
    """The C++ kernels; how many threads share their work changes no bit."""

    name = "native"

    def __init__(self, model: PreTrainedModel, limits: Limits) -> None:
        """Copy the weights of ``model``.

        torch is left with one thread: what it still does, sampling, is little, and its
        waiting threads would take the cores from the kernels' own.

        Raises:
            NativeUnavailable: the kernels cannot be used for this model or on this machine.
        """
        self.dtype: torch.dtype = model.dtype
        self._model = NativeModel(load(), model, limits.block_tokens, limits.threads)
        torch.set_num_threads(1)

    def runner(self, pool: KVPool) -> NativeRunner:
        """Return a runner over ``pool``."""
        return NativeRunner(self._model, pool)

    def sampler(self, vocab: int) -> Sampler:
        """Return the kernels' sampler."""
        return NativeSampler(self._model)

    def identity(self) -> object:
        """Return the library's digest; the angles come from torch."""
        return (torch.__version__, self._model.digest)


def _triton(model: PreTrainedModel, limits: Limits) -> Backend:
    """Return what computes ``model`` with Triton kernels.

    Raises:
        TritonUnavailable: they cannot be used on this machine; ``model`` is as good as before.
        NotInvariant: the GPU's matrix units do not keep a row's bits.
    """
    _require_gpu(model)
    return _with_triton(model, limits)


def _require_gpu(model: PreTrainedModel) -> None:
    if model.device.type != "cuda":
        raise TritonUnavailable(f"the model is on a {model.device.type} device, not on cuda")
    capability = torch.cuda.get_device_capability(model.device)
    if capability < (8, 0):
        raise TritonUnavailable(f"compute capability 8.0 is needed, the GPU has {capability}")
    if importlib.util.find_spec("triton") is None:
        raise TritonUnavailable("the package triton is not installed")


def _with_triton(model: PreTrainedModel, limits: Limits) -> Backend:
    """Return the best of the two backends that works; raises as :func:`_triton` does."""
    # Here, since other machines need not have triton.
    from engine.cuda.backend import DecoderBackend, TiledBackend
    from engine.cuda.decoder import can_decode

    longest, block = limits.max_model_len, limits.block_tokens
    if can_decode(model):
        try:
            with _launching():
                return DecoderBackend(model, limits.max_num_seqs, longest, block)
        except (TritonUnavailable, NotInvariant) as error:
            logger.warning("%s; trying transformers' code over fewer of them", error)
    with _launching():
        return TiledBackend(model, longest, block)


@contextmanager
def _launching() -> Iterator[None]:
    """Tell what keeps Triton from compiling and launching as TritonUnavailable.

    That can be anything: no C compiler, no room for its files, too little shared memory,
    code that a newer Triton refuses.
    """
    try:
        yield
    except (NotInvariant, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = f"a first launch failed: {type(error).__name__}: {error}"
        raise TritonUnavailable(reason) from error


def choose_backend(kernels: str, model: PreTrainedModel, limits: Limits) -> Backend:
    """Return what computes ``model``.

    Args:
        kernels: ``auto`` takes this package's own kernels where they can be used: those in
            C++ on a CPU, those in Triton on a GPU.
        model: is taken over; on the device where it is to be computed.
        limits: of the engine.

    Raises:
        InvalidParam: ``kernels`` names kernels that cannot be used.
        NotInvariant: no way was found to keep a layer's bits.
    """
    own = "native" if model.device.type == "cpu" else "triton"
    wanted = own if kernels == "auto" else kernels
    try:
        if wanted == "native":
            return NativeBackend(model, limits)
        if wanted == "triton":
            return _triton(model, limits)
    except (NativeUnavailable, TritonUnavailable) as error:
        if kernels != "auto":
            limit = f"torch or auto here: {error.reason}"
            raise InvalidParam("kernels", kernels, limit) from error
        logger.warning("%s; torch's are used, which are slower", error)
    return TorchBackend(model, limits.threads)


def default_threads() -> int:
    """How many CPU threads compute unless something else is asked for.

    ``OMP_NUM_THREADS``, else a thread for each core that this process may use. Not what
    torch says, which an engine made before may have changed.
    """
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdecimal() and int(named) > 0:
        return int(named)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(usable or 1, psutil.cpu_count(logical=False) or usable or 1))


def _processor(device: torch.device) -> str:
    """Two processors with the same instruction set may still be given different kernels."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    name = next((line for line in lines if line.startswith("model name")), platform.processor())
    return f"{name} {torch.backends.cpu.get_cpu_capability()}"
