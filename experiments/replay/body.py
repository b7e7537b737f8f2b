"""Body: a request of a load, as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from experiments.loads.load import Load
from experiments.loads.prompts import prompt_of

_ENGLISH: Final = (
    "a about after all also an and any are as at back be because but by can come could day do "
    "even first for from get give go good have he her him his how I if in into is it its just "
    "know like look make many me more most my new no not now of on one only or other our out over "
    "people said say see she so some take than that the their them then there these they think "
    "this time to two up us use want was way we well were what when which who will with work "
    "would year you your"
)

WORDS: Final = tuple(_ENGLISH.split())
"""Words that tokenizers of English have as one token each."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """Makes the bodies of a load's requests, for ``POST /v1/completions``.

    An answer has exactly as many tokens as the load says: ``ignore_eos`` with ``max_tokens``. No
    ``min_tokens``, which would say the same again and makes servers mask logits.

    Attributes:
        load: the requests.
        model: as the server calls it.
        spelling: what stands for each number of a prompt: token ids, or words.
        lower_first: the server takes a lower priority as more urgent, as vLLM does.
        more: fields that each body has besides; they win.
    """

    load: Load
    model: str
    spelling: Sequence[int] | Sequence[str]
    lower_first: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)

    def of(self, index: int) -> bytes:
        """Return the body of a request."""
        arrival = self.load.arrivals[index]
        fields: dict[str, Any] = {
            "model": self.model,
            "prompt": self._prompt(index),
            "max_tokens": arrival.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        # Left out where there is none: servers that know no priorities refuse the field.
        if arrival.priority:
            fields["priority"] = -arrival.priority if self.lower_first else arrival.priority
        return json.dumps(fields | dict(self.more), separators=(",", ":")).encode()

    def _prompt(self, index: int) -> list[int] | str:
        numbers = prompt_of(self.load, index, len(self.spelling))
        units = [self.spelling[number] for number in numbers]
        return units if isinstance(units[0], int) else " ".join(map(str, units))  # type: ignore[return-value]


def spelling(vocab: int, text: bool, seed: int | None) -> list[int] | list[str]:
    """Return what prompts are made of.

    Args:
        vocab: token ids are below it.
        text: words instead.
        seed: says which stands for which number: prompts of two loads, or of one that is sent
            twice, have nothing in common for a prefix cache unless they have one seed. None: each
            token id stands for itself.
    """
    units: list[Any] = list(WORDS) if text else list(range(vocab))
    if seed is not None:
        Random(seed).shuffle(units)
    return units
