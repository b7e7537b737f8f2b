"""One run: the peers take turns, and while one is busy the others are idle."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from experiments.peers.child import Child, PeerFailed
from experiments.peers.load import Load, prompts_of, prompts_of_many_lengths
from experiments.peers.result import SameBits, Sample, SchedulerSample

_TURN_S = 600.0


class Measure:
    """Asks children in turn. One that fails is left out from then on.

    Args:
        children: that have loaded.
        say: is told what goes on.
    """

    def __init__(self, children: Sequence[Child], say: Callable[[str], None]) -> None:
        self._children = list(children)
        self._say = say
        self.failed: dict[str, str] = {}
        self.idle_share: dict[str, float] = {child.name: 0.0 for child in children}

    def warm_up(self, loads: Sequence[Load]) -> None:
        """Let every peer see every shape once, untimed."""
        for child in self._order(0):
            with self._leaving_out(child):
                for load in loads:
                    self._generate(child, prompts_of(load, -1), min(load.output, 4))

    def rates(self, loads: Sequence[Load], rounds: int) -> Iterator[Sample]:
        """Yield tokens/s of every peer at every load in every round, prefills included.

        In a round all peers get the same prompts, one peer after the other; who begins
        changes with the round.
        """
        for number in range(rounds):
            for load in loads:
                for child in self._order(number):
                    with self._leaving_out(child):
                        yield self._rate(child, load, number)

    def same_bits(self, count: int, tokens: int) -> Iterator[SameBits]:
        """Yield how many of so many prompts a peer answers alike all together and alone."""
        prompts = prompts_of_many_lengths(count)
        for child in self._order(0):
            with self._leaving_out(child):
                together = self._generate(child, prompts, tokens)["answers"]
                equal = sum(
                    self._generate(child, [prompt], tokens)["answers"] == [answer]
                    for prompt, answer in zip(prompts, together, strict=True)
                )
                self._say(f"{child.name}: {equal} of {count} equal batched and alone")
                yield SameBits(child.name, equal, count)

    def schedulers(
        self, running: Sequence[int], rounds: int, steps: int
    ) -> Iterator[SchedulerSample]:
        """Yield what the books of a step cost the peers whose scheduler runs by itself."""
        for number in range(rounds):
            for count in running:
                for child in self._order(number):
                    with self._leaving_out(child):
                        request = {"do": "schedule", "running": count, "steps": steps}
                        us = self._turn(child, request)["us"]
                        if us is not None:
                            self._say(f"{child.name}: {us:,.0f} µs a step, {count} running")
                            yield SchedulerSample(child.name, number, count, us)

    def _rate(self, child: Child, load: Load, number: int) -> Sample:
        seconds = 0.0
        for again in range(load.times):
            said = self._generate(child, prompts_of(load, number, again), load.output)
            seconds += said["seconds"]
        rate = load.times * load.tokens() / seconds
        self._say(f"round {number + 1}, {load.name}: {child.name} {rate:,.1f}")
        return Sample(child.name, number, load.name, rate)

    def _generate(self, child: Child, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        request = {"do": "generate", "prompts": prompts, "tokens": tokens}
        said = self._turn(child, request)
        if [len(answer) for answer in said["answers"]] != [tokens] * len(prompts):
            raise child.failed(f"not {tokens} tokens for each of {len(prompts)} prompts")
        return said

    def _turn(self, child: Child, request: dict[str, Any]) -> dict[str, Any]:
        others = [other for other in self._children if other is not child]
        before, begin = [other.cpu_s() for other in others], time.monotonic()
        said = child.ask(request, _TURN_S)
        seconds = time.monotonic() - begin
        for other, used in zip(others, before, strict=True):
            # Over short turns the clock of the CPU's use is too coarse to say anything.
            share = (other.cpu_s() - used) / max(seconds, 1.0)
            self.idle_share[other.name] = max(self.idle_share[other.name], share)
        return said

    def _order(self, number: int) -> list[Child]:
        shift = number % max(len(self._children), 1)
        return self._children[shift:] + self._children[:shift]

    @contextlib.contextmanager
    def _leaving_out(self, child: Child) -> Iterator[None]:
        """A peer's turn: at its end the peer is idle, or it has no more turns."""
        try:
            yield
            child.settle()
        except PeerFailed as error:
            self.failed[child.name] = error.reason
            self._children.remove(child)
            self._say(f"left out from here on: {error}")
