"""Environment: a virtual environment for one client, beside its last run's results."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

_NAME = re.compile(r"[A-Za-z0-9._-]+")


class Installable(Protocol):
    """What is to be installed; see ``Client``."""

    requirements: tuple[str, ...]
    without: frozenset[str]


class Environment:
    """A folder with a virtual environment, results and a log.

    Args:
        folder: made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.results = folder / "results"
        self.bin = folder / "venv" / "bin"
        self._python = str(self.bin / "python")

    def install(self, wanted: Installable) -> None:
        """Install a client, unless exactly that has been installed here.

        Raises:
            subprocess.CalledProcessError: pip failed.
        """
        asked = repr((wanted.requirements, sorted(wanted.without))).encode()
        mark = self._folder / f".installed-{hashlib.sha256(asked).hexdigest()[:12]}"
        if mark.exists():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", self.bin.parent], check=True)
        if wanted.without:
            self._pip("--no-deps", wanted.requirements[0])
            self._pip(*wanted.requirements[1:], *self._dependencies(wanted))
        else:
            self._pip(*wanted.requirements)
        mark.touch()

    def _pip(self, *arguments: str) -> None:
        pip = ("-m", "pip", "install", "--quiet", "--progress-bar", "off")
        subprocess.run([self._python, *pip, *arguments], check=True)

    def _dependencies(self, wanted: Installable) -> list[str]:
        """What the first requirement asks for, less what is to be left out."""
        name = _NAME.match(wanted.requirements[0])
        code = "import importlib.metadata as m, sys; print(*m.requires(sys.argv[1]), sep='\\n')"
        command = [self._python, "-c", code, name[0] if name else ""]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return [
            line
            for line in found.splitlines()
            if "extra ==" not in line
            and (match := _NAME.match(line))
            and match[0].lower() not in wanted.without
        ]

    def run(self, command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, Path]:
        """Run a command in an empty results folder; return its status and its log."""
        shutil.rmtree(self.results, ignore_errors=True)
        self.results.mkdir(parents=True)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        log = self._folder / "log"
        with log.open("w") as output:
            done = subprocess.run(
                command,
                cwd=self.results,
                env={**inherited, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        return done.returncode, log
