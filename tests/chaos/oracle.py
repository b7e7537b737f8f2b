"""The oracle: what the answers are when nothing goes wrong.

They come from the engine alone, in this process: no Ray, no HTTP, nothing that could be
disturbed, and nothing that a fault of the server could spoil in the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.llm import LLM
from engine.request import SamplingParams
from tests.chaos.menu import Dish


@dataclass(frozen=True, slots=True)
class Answer:
    """A right answer.

    Attributes:
        texts, finishes: of each choice.
        tokens: generated, all choices together.
    """

    texts: tuple[str, ...]
    finishes: tuple[str, ...]
    tokens: int


def answers(model: Path, dishes: Sequence[Dish]) -> list[Answer]:
    """Answer everything on the menu."""
    llm = LLM(str(model), num_blocks=4096, threads=1)
    prompts = [prompt for dish in dishes for prompt in dish.prompts]
    params = [SamplingParams(**dish.engine_params()) for dish in dishes for _ in dish.prompts]
    done = iter(llm.generate(prompts, params, progress=False))
    right = []
    for dish in dishes:
        choices = [next(done) for _ in dish.prompts]
        finishes = [choice.finish_reason for choice in choices if choice.finish_reason]
        right.append(
            Answer(
                tuple(choice.text for choice in choices),
                tuple(finish.value for finish in finishes),
                sum(len(choice.token_ids) for choice in choices),
            )
        )
    return right
