"""Loads: what every peer is asked, the same for all and never twice."""

import random
from dataclasses import dataclass

# Ids below are special in the demo model; those from here on are in every vocabulary.
_FIRST, _BEYOND = 100, 49_152


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that are sent together.

    Attributes:
        name: as in the table.
        requests: at a time.
        prompt, output: tokens of each.
        counts: whether the rate counts ``prompt`` or ``output`` tokens.
        times: that it is sent in one turn, each time with other prompts.
    """

    name: str
    requests: int
    prompt: int
    output: int
    counts: str = "output"
    times: int = 1

    def tokens(self) -> int:
        """What the rate counts, in one sending."""
        return self.requests * (self.prompt if self.counts == "prompt" else self.output)


LOADS = (
    Load("output tokens/s, 1 request", 1, 128, 64, times=2),
    Load("output tokens/s, 8 requests", 8, 128, 64),
    Load("output tokens/s, 32 requests", 32, 128, 64),
    Load("prompt tokens/s, one prompt of 1,024", 1, 1024, 1, counts="prompt", times=3),
)

# For a look whether all works.
QUICK = (
    Load("output tokens/s, 1 request", 1, 128, 8),
    Load("output tokens/s, 8 requests", 8, 128, 8),
    Load("prompt tokens/s, one prompt of 1,024", 1, 1024, 1, counts="prompt"),
)


def prompts_of(load: Load, *seed: int) -> list[list[int]]:
    """Random token ids, others for another seed, so that no cache can know them."""
    rng = random.Random(repr((load.name, seed)))
    return [_prompt(rng, load.prompt) for _ in range(load.requests)]


def prompts_of_many_lengths(count: int, shortest: int = 5, longest: int = 200) -> list[list[int]]:
    """Random token ids, of lengths that are random too."""
    rng = random.Random(repr(("lengths", count)))
    return [_prompt(rng, rng.randint(shortest, longest)) for _ in range(count)]


def _prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(_FIRST, _BEYOND) for _ in range(length)]
