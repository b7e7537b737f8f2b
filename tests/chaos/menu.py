"""The menu: what clients ask for. All of it has one right answer, whatever the server suffers."""

from dataclasses import dataclass
from random import Random
from typing import Any

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
    """

    prompts: tuple[str, ...]
    params: dict[str, Any]

    def body(self, *, stream: bool, priority: int) -> dict[str, Any]:
        """The request's body; a stream says at its end how many tokens there were."""
        more = {"stream_options": {"include_usage": True}} if stream else {}
        prompt = list(self.prompts)
        return {"prompt": prompt, "stream": stream, "priority": priority, **self.params, **more}


def menu(rng: Random, size: int) -> list[Dish]:
    """Draw greedy and seeded requests, short and long, with and without penalties and stops."""
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
    return Dish(prompts, params)


def _prompt(rng: Random) -> str:
    return "".join(rng.choice(_PHRASES) for _ in range(rng.randint(1, 5)))
