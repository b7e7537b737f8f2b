"""From an EngineConfig to an Engine: loads, checks, sizes and wires the parts."""

import hashlib
import logging
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from engine.backend import KERNELS, Backend, Limits, choose_backend, default_threads
from engine.blocks import blocks_for
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.guides import Guides, LazyGuides
from engine.host_blocks import host_blocks, swap_space
from engine.kv_pool import KVPool, KVShape
from engine.loader import load_model, load_tokenizer, resolve
from engine.memory import free_bytes, pool_bytes
from engine.model_info import ModelInfo, model_info
from engine.request import is_int, is_number, require
from engine.scheduler import Scheduler
from engine.self_check import Variance, check_same_bits
from engine.step_times import StepTimes
from engine.submission import StepReport
from engine.text import TokenBytes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine turned out to be.

    Attributes:
        model: the model's shape.
        total_blocks, block_tokens: the pool.
        max_model_len: longest sequence in tokens.
        kernels: ``native``, ``triton`` or ``torch``.
        fingerprint: digest of what decides an answer's bits; engines with the same one
            can go on with each other's answers.
    """

    model: ModelInfo
    total_blocks: int
    block_tokens: int
    max_model_len: int
    kernels: str
    fingerprint: str


def build_engine(
    config: EngineConfig,
    on_step: Callable[[StepReport], None],
    clock: Callable[[], int] | None = None,
    rng: random.Random | None = None,
) -> tuple[Engine, EngineInfo]:
    """Load the model and make an engine that has not started yet.

    Args:
        config: what to build.
        on_step: receives what every step did.
        clock: the ticks in which arrivals and ``config.aging`` are counted; steps if None.
        rng: draws missing seeds; seeded by the system if None.

    Raises:
        ModelNotFound, ModelUnreadable: the model cannot be had.
        InvalidParam: a setting is out of its range, or the pool does not fit in memory.
        NotInvariant, Variance: this machine does not keep the same bits.
    """
    _require_settings(config)
    folder = resolve(config.model)
    info = model_info(folder)
    max_model_len = _max_model_len(config, info)
    device = _device(config.device)
    model = load_model(folder, config.dtype, device)
    tokenizer = load_tokenizer(folder)
    threads = config.threads or default_threads()
    limits = Limits(config.block_tokens, config.max_num_seqs, max_model_len, threads)
    backend = choose_backend(config.kernels, model, limits)
    del model  # the backend has it, or a copy
    shape = KVShape(info.num_layers, info.num_kv_heads, info.head_dim, backend.dtype)
    _check(backend, shape, limits, config.allow_variance, device, info.vocab_size)
    num_blocks = _num_blocks(config, shape, max_model_len, device)
    pool = KVPool(shape, num_blocks, config.block_tokens, device)
    runner = backend.runner(pool)
    times = StepTimes()
    host = host_blocks(config.swap_gib, pool) if config.swap_gib else None
    scheduler = Scheduler(
        config.scheduler(max_model_len),
        config.blocks(num_blocks),
        config.prefill_policy(times),
        clock,
        swap_space(host, config.block_tokens, times) if host else None,
    )
    sampler = backend.sampler(info.vocab_size)
    rng = rng or random.Random()
    text = TokenBytes(tokenizer)
    guides = LazyGuides(lambda: _guides(tokenizer, info))
    engine = Engine(
        scheduler,
        runner,
        sampler,
        text,
        info.eos_token_ids,
        on_step,
        rng,
        debug=config.debug,
        guides=guides,
        times=times,
        host=host,
        overlap=config.overlap,
    )
    return engine, EngineInfo(
        info,
        num_blocks,
        config.block_tokens,
        max_model_len,
        backend.name,
        _fingerprint(info, backend),
    )


def _require_settings(config: EngineConfig) -> None:
    """Refuse at once, and by the caller's names, what would fail after the model is loaded."""
    lowest = (
        ("block_tokens", 1),
        ("max_num_seqs", 1),
        ("max_batch_tokens", 1),
        ("admission_preemption", 0),
        ("max_admission_preemptions", 1),
        ("max_passes", 0),
    )
    for name, low in lowest:
        value = getattr(config, name)
        require(is_int(value, low), name, value, f"an integer from {low}")
    for name in ("num_blocks", "prefill_chunk", "threads"):
        value = getattr(config, name)
        require(value is None or is_int(value, 1), name, value, "an integer from 1")
    swap = config.swap_gib
    require(is_number(swap, 0, 1 << 20), "swap_gib", swap, "a number from 0 to 1048576")
    target = config.target_tpot_ms
    given = target is None or is_number(target, 1e-3, 1e9)
    require(given, "target_tpot_ms", target, "a number from 0.001 to 1e9")
    dtypes = ("auto", "float32", "bfloat16", "float16")
    require(config.dtype in dtypes, "dtype", config.dtype, f"one of {', '.join(dtypes)}")
    require(config.kernels in KERNELS, "kernels", config.kernels, f"one of {', '.join(KERNELS)}")


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    require(re.fullmatch(r"cpu|cuda(:\d+)?", name) is not None, "device", name, "auto, cpu or cuda")
    present = name == "cpu" or torch.cuda.is_available()
    require(present, "device", name, "a device that torch finds on this machine")
    return torch.device(name)


def _max_model_len(config: EngineConfig, info: ModelInfo) -> int:
    asked, limit = config.max_model_len, info.max_model_len
    if asked is None:
        return limit
    require(2 <= asked <= limit, "max_model_len", asked, f"from 2 to the model's {limit}")
    return asked


def _check(
    backend: Backend,
    shape: KVShape,
    limits: Limits,
    allow_variance: bool,
    device: torch.device,
    vocab: int,
) -> None:
    make, size, longest = backend.runner, limits.block_tokens, limits.max_model_len
    try:
        check_same_bits(make, shape, device, vocab, size, longest)
    except Variance as variance:
        if not allow_variance:
            raise
        logger.warning("%s; serving all the same, as allow_variance says", variance)


def _num_blocks(
    config: EngineConfig, shape: KVShape, max_model_len: int, device: torch.device
) -> int:
    """As many blocks as asked for, or as fit in memory and could ever be used."""
    block_bytes = shape.bytes_per_token * config.block_tokens
    if config.num_blocks is None:
        room = pool_bytes(device) // block_bytes
        require(room >= 1, "memory for K and V", pool_bytes(device), f"{block_bytes} bytes or more")
        return min(room, config.max_num_seqs * blocks_for(max_model_len, config.block_tokens))
    most = free_bytes(device) // block_bytes
    limit = f"at most {most}, which is what memory holds"
    require(config.num_blocks <= most, "num_blocks", config.num_blocks, limit)
    return config.num_blocks


def _guides(tokenizer: PreTrainedTokenizerFast, info: ModelInfo) -> Guides:
    # Here, since most engines never need the library behind it, nor its tables.
    from engine.guidance import Guides as GrammarGuides

    return GrammarGuides(tokenizer, info.vocab_size, info.eos_token_ids)


def _fingerprint(info: ModelInfo, backend: Backend) -> str:
    """Digest of all that decides bits: weights, dtype, device, kernels and their use."""
    parts = (
        info.revision,
        str(backend.dtype),
        transformers.__version__,
        backend.name,
        backend.identity(),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
