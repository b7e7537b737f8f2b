"""Measures what a step costs on this machine, and writes a model that the simulator takes.

``tidegate simulate --fit --out FILE.json`` drives the real engine, with the settings
that ``tidegate serve`` would give it, through steps of all sizes.
"""

import argparse
import csv
import os
import platform
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
import psutil
import torch

from deployments.config import ConfigError, ServeConfig
from deployments.engine_config import engine_config
from deployments.flags import Parser, add_settings, help_of
from engine.loader import resolve
from engine.model_info import ModelError
from engine.request import InvalidParam
from experiments.simulator.fitted import Fitted, errors, fit
from experiments.simulator.measured_engines import Measured, measure_engines
from experiments.simulator.measured_step import MeasuredStep
from experiments.simulator.step_models import About, fitted_json

SETTINGS: Final = (
    "dtype", "device", "threads", "kernels", "max_model_len", "max_num_seqs",
    "max_num_batched_tokens", "prefill_chunk", "block_size", "num_blocks", "allow_variance",
)  # fmt: skip
"""Settings that decide what a step is made of and what it costs."""
_NAME: Final = "tidegate simulate --fit"
HELD_OUT: Final = 4  # of so many episodes one is kept to judge by


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write the file and print how far off the model is; returns the exit code."""
    options = _parser().parse_args(argv)
    given = {name: getattr(options, name) for name in ("model", "replicas", *SETTINGS)}
    try:
        config = ServeConfig.of(given)
        if options.cpu_time and not one_thread(config):
            raise ConfigError("--cpu-time is for engines of one CPU thread: --threads 1")
        resolve(config.model)  # before several processes find out that there is none
        made = measure_engines(
            engine_config(config),
            config.replicas,
            options.seconds,
            options.seed,
            time.thread_time if options.cpu_time else time.perf_counter,
        )
        model, about = model_of(made, config, options.seed)
    except (ConfigError, ModelError, InvalidParam, ValueError, RuntimeError) as error:
        print(f"{_NAME}: {error}", file=sys.stderr)
        return 1
    Path(options.out).write_text(fitted_json(model, about), encoding="utf-8")
    if options.steps is not None:
        _write_steps(Path(options.steps), made)
    print(table(model, about))
    print(f"\n{options.out}: for tidegate simulate --step-time {options.out}")
    return 0


def model_of(made: Sequence[Measured], config: ServeConfig, seed: int) -> tuple[Fitted, About]:
    """Return the model of what engines did, on what, and how far off one is that saw only a part.

    A quarter of the episodes is held out: the errors are of steps that the fit they are of has
    not seen, made at other moments. The model itself is fitted to all.

    Args:
        made: what was measured.
        config: the settings that they had.
        seed: of which episodes are held out.

    Raises:
        ValueError: too little was measured.
    """
    episodes = [episode for one in made for episode in one.episodes]
    order = random.Random(seed).sample(episodes, len(episodes))
    seen = [step for i, episode in enumerate(order) if i % HELD_OUT for step in episode]
    held: list[MeasuredStep] = [step for episode in order[::HELD_OUT] for step in episode]
    copy_block_s = float(np.median([one.copy_block_s for one in made]))
    every = [*seen, *held]
    off = np.array(errors(fit(seen), held))
    return fit(every, copy_block=copy_block_s), {
        **_machine(made[0], config),
        "steps": len(every),
        "held_out_steps": len(held),
        "median_error": round(float(np.median(np.abs(off))), 4),
        "p90_error": round(float(np.quantile(np.abs(off), 0.9)), 4),
        "median_signed_error": round(float(np.median(off)), 4),
    }


def one_thread(config: ServeConfig) -> bool:
    """Whether an engine's thread does all of its computing."""
    on_gpu = config.device != "cpu" and torch.cuda.is_available()
    return config.threads_per_replica == 1 and not on_gpu


def table(model: Fitted, about: About) -> str:
    """Return what was found, for people."""
    examples = (
        ("1 decode, context 500", (0, 0, 1, 500)),
        ("8 decodes, context 500 each", (0, 0, 8, 4000)),
        ("32 decodes, context 500 each", (0, 0, 32, 16_000)),
        ("a prompt of 512", (512, 512 * 513 // 2, 0, 0)),
        ("the same beside 8 decodes", (512, 512 * 513 // 2, 8, 4000)),
    )
    lines = [f"{name}: {value}" for name, value in about.items()]
    lines += ["", "| a step of | takes |", "|---|---|"]
    lines += [f"| {what} | {1e3 * model.seconds(*work):.3g} ms |" for what, work in examples]
    return "\n".join(lines)


def _write_steps(file: Path, made: Sequence[Measured]) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        rows = csv.writer(out)
        rows.writerow(["replica", "episode", *(one.name for one in fields(MeasuredStep))])
        for i, one in enumerate(made):
            for j, episode in enumerate(one.episodes):
                rows.writerows([i, j, *astuple(step)] for step in episode)


def _machine(one: Measured, config: ServeConfig) -> dict[str, str | int | float | None]:
    model = one.info.model
    return {
        "machine": _processor(config.device),
        "cores": psutil.cpu_count(logical=True),
        "model": config.name,
        "dtype": model.dtype if config.dtype == "auto" else config.dtype,
        "kernels": one.info.kernels,
        "threads": config.threads_per_replica,
        "replicas_side_by_side": config.replicas,
        "torch": torch.__version__,
        "date": datetime.now(UTC).date().isoformat(),
    }


def _processor(device: str) -> str:
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    names = _cpu_names() if os.path.exists("/proc/cpuinfo") else []
    return names[0] if names else platform.processor() or platform.machine()


def _cpu_names() -> list[str]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=_NAME,
        description="Measure what a step costs on this machine, and write a model that tidegate "
        "simulate --step-time takes: drives the real engine, with the settings that tidegate serve "
        "would give it, through steps of all sizes.",
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help=help_of("model"))
    parser.add_argument("--out", required=True, metavar="FILE.json", help="where the model goes")
    parser.add_argument(
        "--replicas",
        type=int,
        default=1,
        metavar="N",
        help="engines that run at the same time, as replicas on this machine would",
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=75.0,
        metavar="S",
        help="how long to measure; loading the model and warming up come before",
    )
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count the CPU time of engines of one thread, not the time that passes: for a machine "
        "that has other things to do meanwhile",
    )
    parser.add_argument("--steps", metavar="FILE.csv", help="where every measured step goes")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is measured")
    add_settings(parser, SETTINGS)
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"must be from 1 to 3600, not {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
