"""Bare engines side by side, each in a process of its own as replicas are."""

import contextlib
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from engine.llm import LLM
from experiments.bench.engine_speed import greedy


class BareEngines:
    """Engines that wait for prompts.

    Args:
        pipes: to each of them.

    Attributes:
        vocab: tokens that the model knows.
    """

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes
        self.vocab: int = min(pipe.recv() for pipe in pipes)  # all are the same

    def seconds(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> float:
        """Return how long they take for the prompts, dealt out in turn, all at the same time."""
        count = len(self._pipes)
        busy = []
        for index, pipe in enumerate(self._pipes):
            if share := [list(prompt) for prompt in prompts[index::count]]:
                pipe.send((share, max_tokens))
                busy.append(pipe)
        return max(pipe.recv() for pipe in busy)


@contextlib.contextmanager
def bare_engines(model: str | None, count: int, threads: int) -> Iterator[BareEngines]:
    """Load the model ``count`` times, with so many CPU threads each; they end with the context."""
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(count)]
    processes = [
        context.Process(target=_work, args=(theirs, model, threads), daemon=True)
        for _, theirs in ends
    ]
    for process in processes:
        process.start()
    try:
        yield BareEngines([ours for ours, _ in ends])
    finally:
        for ours, _ in ends:
            ours.send(None)
        for process in processes:
            process.join()


def _work(pipe: Connection, model: str | None, threads: int) -> None:
    llm = LLM(model, threads=threads)
    pipe.send(llm.info.model.vocab_size)
    while (task := pipe.recv()) is not None:
        prompts, max_tokens = task
        began = time.perf_counter()
        llm.generate(prompts, greedy(max_tokens), progress=False)
        pipe.send(time.perf_counter() - began)
