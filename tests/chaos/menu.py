"""The menu: what clients ask for. All of it has one right answer, whatever the server suffers."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Dish:
    """One thing to ask for.

    Attributes:
        prompts: one or several; each gets a choice.
        params: the engine's parameters by name; the API has the same names.
        guided: what the API calls ``structured_outputs``; empty is none.
    """

    prompts: tuple[str, ...]
    params: dict[str, Any]
    guided: dict[str, Any] = field(default_factory=dict)

    def body(self, *, stream: bool, priority: int) -> dict[str, Any]:
        """The request's body; a stream says at its end how many tokens there were."""
        more: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
        prompt = list(self.prompts)
        if self.guided:
            more["structured_outputs"] = self.guided
        return {"prompt": prompt, "stream": stream, "priority": priority, **self.params, **more}

    def engine_params(self) -> dict[str, Any]:
        """The engine's parameters, all of them."""
        grammar = grammar_of({"structured_outputs": self.guided}) if self.guided else None
        return {**self.params, "grammar": grammar}


def menu(rng: Random, size: int) -> list[Dish]:
    """Draw greedy and seeded, short and long, with and without penalties, stops and grammars."""
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
    return Dish(prompts, params, guided)


def _prompt(rng: Random) -> str:
    return "".join(rng.choice(_PHRASES) for _ in range(rng.randint(1, 5)))
