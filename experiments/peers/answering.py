"""The child's side: load an engine once, then do what the lines on stdin ask for.

Runs in the peer's own environment, so it needs nothing but the standard library. One JSON
object a line each way: the child first says ``{"versions": {...}}``, then answers every
request with ``{"seconds": s, ...}`` or ``{"error": text}``; it ends when stdin does.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Settings:
    """What every peer is started with.

    Attributes:
        model: folder with the model.
        dtype: of weights, K and V.
        threads: that compute.
        max_seqs: sequences a step.
        max_batch_tokens: tokens a step.
        max_model_len: longest sequence.
        kv_tokens: tokens that K and V have room for, at least.
    """

    model: str
    dtype: str
    threads: int
    max_seqs: int = 64
    max_batch_tokens: int = 2048
    max_model_len: int = 2048
    kv_tokens: int = 65_536


class Peer(Protocol):
    """An engine that is loaded."""

    @property
    def versions(self) -> dict[str, str]:
        """What was loaded: name of a package or a choice, and its version or value."""

    def generate(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        """Answer all prompts together, greedily, each with exactly so many tokens.

        Nothing of one call may be found again by a later one, so no prefix cache.
        """

    def scheduler_step_us(self, running: int, steps: int) -> float | None:
        """µs of CPU that the books of one step take, a median; None if it has no scheduler."""

    def close(self) -> None:
        """End threads that would keep the process alive."""


def answer(load: Callable[[Settings], Peer]) -> None:
    """Load an engine with the settings of the command line and answer until stdin ends.

    Whatever else is printed goes to stderr, also from the engine's own processes.
    """
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    peer = load(Settings(**json.loads(sys.argv[1])))
    print(json.dumps({"versions": peer.versions}), file=lines)
    try:
        for line in sys.stdin:
            try:
                said = _do(peer, json.loads(line))
            except Exception as error:
                said = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(said), file=lines)
    finally:
        # Also when the one who asked is gone: its end of stdin closes with it.
        peer.close()


def _do(peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
    begin = time.perf_counter()
    match request["do"]:
        case "generate":
            answers = peer.generate(request["prompts"], request["tokens"])
            return {"seconds": time.perf_counter() - begin, "answers": answers}
        case "schedule":
            took = peer.scheduler_step_us(request["running"], request["steps"])
            return {"seconds": time.perf_counter() - begin, "us": took}
        case other:
            raise ValueError(f"nobody here knows how to do {other!r}")
