"""An environment with vLLM's build for CPUs."""

from pathlib import Path

from experiments.clients.environment import Environment
from experiments.clients.known import CLIENTS


def set_up(folder: Path) -> Path:
    """Install vLLM (3.5 GB) into a folder, unless it is there, and return its Python.

    The wheel that vLLM's benchmark client comes with is the whole engine.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    environment = Environment(folder.resolve())
    environment.install(CLIENTS["vllm-bench"])
    return environment.bin / "python"
