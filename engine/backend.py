"""Backends: by what a model is computed on this machine."""

import logging
import platform
from pathlib import Path
from typing import Protocol

import torch
from transformers import PreTrainedModel

from engine.kv_pool import KVPool
from engine.linear import make_invariant
from engine.native.library import NativeUnavailable, load
from engine.native.model import NativeModel
from engine.native.runner import NativeRunner
from engine.native.sampler import NativeSampler
from engine.request import InvalidParam
from engine.runner import ModelRunner, Runner
from engine.sampling import Sampler

logger = logging.getLogger(__name__)

KERNELS = ("auto", "native", "torch")


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

    def __init__(self, model: PreTrainedModel) -> None:
        """Take ``model`` over.

        Raises:
            NotInvariant: no way was found to keep a layer's bits.
        """
        self.dtype: torch.dtype = model.dtype
        self._model = model
        self._tilings = make_invariant(model)
        self._decode_tile = 0

    def runner(self, pool: KVPool) -> ModelRunner:
        """Return a runner over ``pool``."""
        runner = ModelRunner(self._model, pool)
        self._decode_tile = runner.attention.decode_tile
        return runner

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

    def __init__(self, model: PreTrainedModel, block_tokens: int) -> None:
        """Copy the weights of ``model``.

        torch is left with one thread: what it still does, sampling, is little, and its
        waiting threads would take the cores from the kernels' own.

        Raises:
            NativeUnavailable: the kernels cannot be used for this model or on this machine.
        """
        self.dtype: torch.dtype = model.dtype
        self._model = NativeModel(load(), model, block_tokens, torch.get_num_threads())
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


def choose_backend(kernels: str, model: PreTrainedModel, block_tokens: int) -> Backend:
    """Return what computes ``model``.

    Args:
        kernels: ``auto`` takes the C++ kernels where they can be used.
        model: is taken over; on the device where it is to be computed.
        block_tokens: of the pools.

    Raises:
        InvalidParam: ``kernels`` is ``native`` and they cannot be used.
        NotInvariant: no way was found to keep a layer's bits.
    """
    if kernels != "torch":
        try:
            return NativeBackend(model, block_tokens)
        except NativeUnavailable as error:
            if kernels == "native":
                limit = f"torch or auto here: {error.reason}"
                raise InvalidParam("kernels", kernels, limit) from error
            if model.device.type == "cpu":
                logger.warning("%s; torch's are used, which are slower", error)
    return TorchBackend(model)


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
