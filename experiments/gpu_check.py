"""Checks the CUDA path on a machine with a GPU, and measures it: contracts first, then speed.

    python experiments/gpu_check.py --write experiments/results

Needs torch, triton and transformers, and a checkout of this repository; no Ray, no network
and no model: weights are random.  Every part stands for itself, so that one that fails
leaves the others' figures.  Without a GPU the same parts run in Triton's interpreter, at
sizes that show mistakes and not speed: ``--device cpu --tiny``.
"""

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

PATIENCE = 100.0
"""Seconds that one part may take; a kernel that hangs must not take the others' time."""


def main(arguments: list[str] | None = None) -> int:
    """Run all parts; 1 if any failed."""
    options = _options(arguments)
    if options.device == "cpu":
        # Read when a kernel is defined.
        os.environ["TRITON_INTERPRET"] = "1"
    if options.notes is not None:
        return _work(options)
    with tempfile.TemporaryDirectory() as folder:
        return _oversee(options, Path(folder) / "notes")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="leave gpu_check.json and .md")
    parser.add_argument("--seconds", type=float, default=235.0, help="stop after so long")
    # How the script starts itself.
    parser.add_argument("--notes", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.device == "cpu" and not options.tiny:
        parser.error("--device cpu runs in an interpreter: say --tiny")
    return options


def _oversee(options: argparse.Namespace, notes: Path) -> int:
    """Start processes that do the parts, and report what they found."""
    from experiments.gpu.report import Overseer, markdown

    command = [sys.executable, __file__, "--device", options.device, "--dtype", options.dtype]
    command += [*(["--tiny"] if options.tiny else []), "--notes", str(notes), "--first"]
    parts = Overseer(notes, command, options.seconds, PATIENCE).run()
    names = notes.with_suffix(".names")
    known = json.loads(names.read_text()) if names.exists() else []
    missing = known[len(parts) :]
    failed = not known or bool(missing) or any("error" in part for part in parts)
    report = markdown(parts, missing)
    print("\n" + report)
    if options.write is not None:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "gpu_check.md").write_text(report)
        whole = {"failed": failed, "parts": parts, "not begun": missing}
        (options.write / "gpu_check.json").write_text(json.dumps(whole, indent=1) + "\n")
    return int(failed)


def _work(options: argparse.Namespace) -> int:
    """Do the parts in this process."""
    import torch

    from experiments.gpu.contracts import Place
    from experiments.gpu.parts import parts_of
    from experiments.gpu.report import Worker

    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch finds no GPU here; --device cpu --tiny runs in an interpreter", flush=True)
        return 2
    device = torch.device(options.device)
    parts = parts_of(Place(device, getattr(torch, options.dtype), options.tiny))
    options.notes.with_suffix(".names").write_text(json.dumps([part.name for part in parts]))
    with ExitStack() as stack:
        if options.device == "cpu":
            from experiments.gpu.interpreted import matrix_units

            stack.enter_context(matrix_units())
        done = Worker(options.notes).run(parts, options.first, _spoils)
    return 0 if done else 3


def _spoils(error: Exception) -> bool:
    """Whether nothing works on the GPU after an error, in this process."""
    import torch

    if not torch.cuda.is_available():
        return False
    try:
        torch.zeros(1, device="cuda").cpu()
        torch.cuda.empty_cache()
    except Exception:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
