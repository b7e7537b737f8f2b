"""Checks the CUDA path on a machine with a GPU, and measures it: contracts first, then speed.

    python experiments/gpu_check.py --write experiments/results

Needs torch, triton and transformers, and a checkout of this repository; no Ray, no network
and no model: weights are random.  Every part stands for itself, so that one that fails
leaves the others' figures.  Without a GPU the same parts run in Triton's interpreter, at
sizes that show mistakes and not speed: ``--device cpu --tiny``.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main(arguments: list[str] | None = None) -> int:
    """Run all parts and return how many failed, at most 1."""
    options = _options(arguments)
    if options.device == "cpu":
        # Read when a kernel is defined.
        os.environ["TRITON_INTERPRET"] = "1"
    report = Report(time.monotonic, options.seconds)
    _run(options, report)
    lines = report.markdown()
    print("\n".join(lines))
    if options.write is not None:
        report.write(options.write, lines)
    return 1 if report.failed else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="leave gpu_check.json and .md")
    parser.add_argument(
        "--seconds", type=float, default=230.0, help="begin no part later than this"
    )
    options = parser.parse_args(arguments)
    if options.device == "cpu" and not options.tiny:
        parser.error("--device cpu runs in an interpreter: say --tiny")
    return options


class Report:
    """What each part found, or how it failed.

    Args:
        clock: seconds.
        limit: seconds after which no part begins.
    """

    def __init__(self, clock: Callable[[], float], limit: float) -> None:
        self._clock = clock
        self._begin = clock()
        self._limit = limit
        self.parts: list[dict[str, Any]] = []
        self.failed = False

    def part(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Do one part; its result, or None if it failed or came too late."""
        begin = self._clock()
        told: dict[str, Any] = {"part": name}
        self.parts.append(told)
        result = None
        if begin - self._begin > self._limit:
            told["skipped"] = f"{self._limit:.0f} s are over"
        else:
            try:
                result = work()
                told["result"] = result
            # Whatever goes wrong on a machine like this for the first time, others go on.
            except Exception as error:
                self.failed = True
                told["error"] = f"{type(error).__name__}: {error}"[:2000]
                told["where"] = traceback.format_exc().splitlines()[-24:]
        told["seconds"] = round(self._clock() - begin, 2)
        state = "ok" if result is not None else told.get("skipped", "FAILED")
        print(f"{told['seconds']:7.1f} s  {name}: {state}", flush=True)
        return result

    def markdown(self) -> list[str]:
        """The report as lines."""
        lines = ["", "# GPU check", ""]
        for told in self.parts:
            lines += [f"## {told['part']} ({told['seconds']} s)", ""]
            if "error" in told:
                lines += [f"FAILED: {told['error']}", "", "```", *told["where"], "```"]
            lines += [f"Skipped: {told['skipped']}"] if "skipped" in told else []
            for key, value in told.get("result", {}).items():
                shown = f"{value:.4g}" if isinstance(value, float) else value
                lines.append(f"- {key}: {shown}")
            lines.append("")
        return lines

    def write(self, folder: Path, lines: list[str]) -> None:
        """Leave the report in a folder, for people and for programs."""
        import json

        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gpu_check.md").write_text("\n".join(lines[1:]) + "\n")
        whole = {"failed": self.failed, "parts": self.parts}
        (folder / "gpu_check.json").write_text(json.dumps(whole, indent=1) + "\n")


def _run(options: argparse.Namespace, report: Report) -> None:
    """All parts, on the device that was asked for."""
    machine = report.part("machine", lambda: _machine(options.device))
    if machine is None:
        return
    if options.device == "cpu":
        from experiments.gpu.interpreted import matrix_units

        with matrix_units():
            _parts(options, report)
    else:
        _parts(options, report)


def _machine(device: str) -> dict[str, Any]:
    import torch
    import transformers
    import triton

    told: dict[str, Any] = {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "transformers": transformers.__version__,
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        told["device"] = properties.name
        told["compute capability"] = f"{properties.major}.{properties.minor}"
        told["multiprocessors"] = properties.multi_processor_count
        told["memory GiB"] = properties.total_memory / 2**30
    else:
        told["device"] = "Triton's interpreter"
    return told


def _parts(options: argparse.Namespace, report: Report) -> None:
    import torch

    from experiments.gpu import contracts, models

    place = contracts.Place(
        torch.device(options.device), getattr(torch, options.dtype), options.tiny
    )
    shapes = [models.TINY] if place.tiny else [models.LLAMA_1B, models.LLAMA_8B]
    for shape in shapes:
        report.part(
            f"products of the {shape.name} shape",
            partial(contracts.products, place, shape.weights()),
        )
    heads = [(16, 2, 1)] if place.tiny else [(64, 32, 8), (128, 32, 8), (80, 32, 32), (96, 24, 8)]
    for dim, count, kv_heads in heads if place.tiny else [*heads, (256, 16, 8)]:
        report.part(
            f"attention, {count} heads of {dim}, {kv_heads} of keys",
            partial(contracts.attention, place, dim, count, kv_heads),
        )
    # Two layers show what thirty would.
    for shape in shapes:
        report.part(
            f"same bits of a model of the {shape.name} shape, two layers",
            partial(contracts.model, place, replace(shape, layers=min(2, shape.layers))),
        )
    report.part("sampling", lambda: contracts.sampling(place, shapes[0].vocab))
    _speed(place, shapes, report)


def _speed(place: Any, shapes: list[Any], report: Report) -> None:
    from engine.cuda.decoder import Decoder
    from experiments.gpu import models, speed

    load = speed.TINY_LOAD if place.tiny else speed.Load()
    rate = 0.0

    def bandwidth() -> dict[str, Any]:
        nonlocal rate
        rate = speed.copy_rate(place.device)
        return {"GB/s of a copy, reads and writes": rate / 1e9}

    if report.part("memory bandwidth", bandwidth) is None:
        return
    for shape in shapes:
        test: Any = None

        def load_model(shape: Any = shape) -> dict[str, Any]:
            nonlocal test
            model = models.random_model(shape, place.dtype, place.device)
            longest = max(load.prompt + load.steps + 16, load.long_prompt + 2)
            test = speed.SpeedTest(place, shape, Decoder(model, longest), load, rate)
            return {"seconds to record graphs": test.recording_s}

        report.part(f"{shape.name}: load", load_model)
        if test is None:
            continue
        for concurrent in load.concurrent:
            report.part(
                f"{shape.name}: decode, {concurrent} at once",
                partial(test.decode, concurrent),
            )
        report.part(f"{shape.name}: prefill", test.prefill)


if __name__ == "__main__":
    sys.exit(main())
