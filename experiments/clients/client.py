"""Client: a load generator that others wrote, and what it reports of one run."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.clients.environment import Environment


class ClientFailed(RuntimeError):
    """A client ended with an error of its own.

    Attributes:
        name: of the client.
        status: its exit status.
        log: where its output is.
    """

    def __init__(self, name: str, status: int, log: Path) -> None:
        super().__init__(name, status, log)
        self.name = name
        self.status = status
        self.log = log

    def __str__(self) -> str:
        return f"it ended with status {self.status}; its output is in {self.log}"


@dataclass(frozen=True, slots=True)
class Server:
    """What is measured.

    Attributes:
        url: without a path.
        model: its name in the API.
        tokenizer: a folder with the model's tokenizer.
    """

    url: str
    model: str
    tokenizer: Path


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent: ``requests`` in all, ``concurrency`` at a time, lengths in tokens."""

    requests: int
    concurrency: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a client says of its run.

    Attributes:
        client, version: who.
        completed, failed: requests.
        output_tokens: as the server's usage counts them, or the client itself.
        ttft_ms, itl_ms: medians in milliseconds, None where nothing was measured.
    """

    client: str
    version: str
    completed: int
    failed: int
    output_tokens: int
    ttft_ms: float | None
    itl_ms: float | None

    def complete(self, load: Load) -> bool:
        """Whether every request had its whole answer."""
        return (
            self.completed == load.requests
            and self.failed == 0
            and self.output_tokens == load.requests * load.output_tokens
        )


class Client(ABC):
    """One load generator.

    Attributes:
        name: also of its environment's folder.
        version: that is installed.
        requirements: what pip is to install.
        without: dependencies of ``requirements`` that are left out.
    """

    name: str
    version: str
    requirements: tuple[str, ...]
    without: frozenset[str] = frozenset()

    @abstractmethod
    def command(self, environment: Environment, server: Server, load: Load) -> list[str]:
        """Return the command line, results going into ``environment.results``."""

    @abstractmethod
    def read(self, results: Path) -> Outcome:
        """Read what the run left in its folder."""

    def variables(self) -> dict[str, str]:
        """Return what to set in the process's environment."""
        return {"HF_HUB_OFFLINE": "1"}

    def run(self, environment: Environment, server: Server, load: Load) -> Outcome:
        """Run it once.

        Raises:
            ClientFailed: it did not end well.
        """
        command = self.command(environment, server, load)
        status, log = environment.run(command, self.variables())
        if status:
            raise ClientFailed(self.name, status, log)
        return self.read(environment.results)


def median_of(metric: dict[str, Any] | None, key: str) -> float | None:
    """Return a figure of a metric that may be missing."""
    return None if metric is None else float(metric[key])
