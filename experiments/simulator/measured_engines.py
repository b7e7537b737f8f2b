"""Steps of real engines, measured in processes of their own, as many side by side as wanted."""

import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Final

import torch

from engine.build import EngineInfo
from engine.engine_config import EngineConfig
from engine.host_blocks import HostBlocks
from engine.kv_pool import KVPool, KVShape
from experiments.simulator.step_plan import Episode, measure
from experiments.simulator.step_rig import StepRig

LOAD_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What one engine did.

    Attributes:
        episodes: its steps.
        info: what it turned out to be.
        copy_block_s: what copying one block to or from host memory takes.
    """

    episodes: Sequence[Episode]
    info: EngineInfo
    copy_block_s: float


def measure_engines(
    config: EngineConfig,
    replicas: int,
    seconds: float,
    seed: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Measured]:
    """Measure engines that run at the same time, as replicas on one machine do.

    Args:
        config: of each of them.
        replicas: how many, >= 1.
        seconds: how long each goes on once all have loaded the model.
        seed: of what they are given, each something else.
        clock: what steps are timed by, one of the module `time`: ``thread_time`` counts what an
            engine of one CPU thread computes, and leaves out what others take from its core.

    Raises:
        ModelError, InvalidParam, NotInvariant, Variance: as `build_engine`.
    """
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(replicas)
    links, processes = [], []
    for i in range(replicas):
        link, theirs = context.Pipe(duplex=False)
        work = (theirs, together, config, seconds, seed + i, clock)
        process = context.Process(target=_run, args=work)
        process.daemon = True
        process.start()
        processes.append(process)
        theirs.close()  # so that its end is seen here when the process ends
        links.append(link)
    told = [_told(link) for link in links]
    for process in processes:
        process.join()
    made = [one for one in told if isinstance(one, Measured)]
    if len(made) == replicas:
        return made
    errors = [one for one in told if isinstance(one, BaseException)]
    # Who waited for one that failed has nothing to say.
    raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))


def _told(link: "Connection[None, Measured | Exception]") -> Measured | Exception:
    try:
        return link.recv()
    except EOFError:
        return RuntimeError("the process of an engine ended before it had measured")


def _run(
    link: "Connection[Measured | Exception, None]",
    together: Barrier,
    config: EngineConfig,
    seconds: float,
    seed: int,
    clock: Callable[[], float],
) -> None:
    try:
        rig = StepRig(config, seed, clock)
        copy_block_s = _copy_s(rig.info, config.device)
        together.wait(LOAD_TIMEOUT_S)
        link.send(Measured(measure(rig, seconds, seed), rig.info, copy_block_s))
    except Exception as error:
        together.abort()
        link.send(error)


def _copy_s(info: EngineInfo, device: str) -> float:
    """Return what copying one block takes, as an engine that swaps measures it."""
    model = info.model
    dtype = getattr(torch, model.dtype, torch.float32)
    shape = KVShape(model.num_layers, model.num_kv_heads, model.head_dim, dtype)
    where = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    pool = KVPool(shape, 1, info.block_tokens, torch.device(where))
    return HostBlocks(pool, 1).seconds_per_block
