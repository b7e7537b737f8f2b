"""The menu: what clients ask for. All of it has one right answer, whatever the server suffers."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from deployments.openai.jobs import choice_seed
from deployments.openai.structured import grammar_of

LONGEST = 512
"""Tokens that an answer has at most."""

_PHRASES = (
    "The tide comes in when ",
    "A harbour is ",
    "Ébb und Flut: où ça? ",
    "潮の満ち引き、",
    "🌊⚓ ",
    "0123456789 ",
)

# What many have in common, some blocks of it.
_PREAMBLES = (
    "Below are notes of a harbour master, one a line; go on with them. " * 3,
    "Wer das Wetter kennt, kennt die See: " * 6,
)


@dataclass(frozen=True, slots=True)
class Dish:
    """One thing to ask for.

    Attributes:
        prompts: one or several.
        params: the engine's parameters by name; the API has the same names.
        guided: what the API calls ``structured_outputs``; empty is none.
        n: choices of each prompt.
    """

    prompts: tuple[str, ...]
    params: dict[str, Any]
    guided: dict[str, Any] = field(default_factory=dict)
    n: int = 1

    def body(self, *, stream: bool, priority: int) -> dict[str, Any]:
        """The request's body; a stream says at its end how many tokens there were."""
        more: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
        prompt = list(self.prompts)
        if self.guided:
            more["structured_outputs"] = self.guided
        return {
            **{"prompt": prompt, "stream": stream, "priority": priority, "n": self.n},
            **self.params,
            **more,
        }

    def choices(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each choice's prompt and all of the engine's parameters, in order."""
        grammar = grammar_of({"structured_outputs": self.guided}) if self.guided else None
        for prompt in self.prompts:
            for choice in range(self.n):
                seed = choice_seed(self.params["seed"], choice)
                yield prompt, {**self.params, "grammar": grammar, "seed": seed}


def menu(rng: Random, size: int) -> list[Dish]:
    """Draw greedy and seeded, short and long, with and without penalties, stops and grammars.

    And with log-probabilities, several choices, and prompts that begin alike.
    """
    return [_dish(rng) for _ in range(size)]


def _dish(rng: Random) -> Dish:
    prompts = tuple(_prompt(rng) for _ in range(rng.choice((1, 1, 1, 1, 1, 2))))
    longest = rng.choice((16, 64, 160, LONGEST))
    params: dict[str, Any] = {
        "max_tokens": rng.randint(longest // 2, longest),
        "temperature": rng.choice((0.0, 0.0, 0.7, 1.0)),
        "seed": rng.getrandbits(48),
        "ignore_eos": rng.random() < 0.8,
    }
    if rng.random() < 0.3:
        params["top_p"] = rng.choice((0.5, 0.95))
    if rng.random() < 0.2:
        params["top_k"] = rng.choice((5, 40))
    if rng.random() < 0.3:
        params["frequency_penalty"] = rng.choice((-0.5, 0.7))
        params["presence_penalty"] = rng.choice((0.0, 0.4))
        params["repetition_penalty"] = rng.choice((1.0, 1.2))
    if rng.random() < 0.4:
        # One letter that comes sooner or later, and beginnings that have to be held back.
        letters = rng.sample("abcdefghijkmnopqrstuvwxyz{}", 3)
        params["stop"] = [letters[0], letters[1] * 2, letters[2] + "é"]
        params["min_tokens"] = rng.choice((0, 0, 6))
    guided = {}
    if rng.random() < 0.25:
        # Words of many lengths: a life that forgot where it was in one would be seen.
        guided["regex"] = rng.choice(
            (r"([a-z]{2,9} ){40,90}", r"(\{\"[a-f]+\": [0-9]{3}\} ?){30,60}")
        )
    if rng.random() < 0.25:
        params["logprobs"] = rng.choice((0, 1, 4))
    return Dish(prompts, params, guided, n=rng.choice((1, 1, 1, 1, 1, 1, 2, 3)))


def _prompt(rng: Random) -> str:
    preamble = rng.choice(_PREAMBLES) if rng.random() < 0.4 else ""
    return preamble + "".join(rng.choice(_PHRASES) for _ in range(rng.randint(1, 5)))
