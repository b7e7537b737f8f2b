"""The oracle: what the answers are when nothing goes wrong.

They come from the engine alone, in this process: no Ray, no HTTP, nothing that could be
disturbed, and nothing that a fault of the server could spoil in the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments.openai.logprobs import CompletionLedger
from deployments.openai.tokens import TokenNames
from engine.llm import LLM, Completion
from engine.request import SamplingParams
from engine.submission import Detail
from tests.chaos.menu import Dish


@dataclass(frozen=True, slots=True)
class Answer:
    """A right answer.

    Attributes:
        texts, finishes: of each choice.
        tokens: generated, all choices together.
        logprobs: of each choice; None if they were not asked for.
    """

    texts: tuple[str, ...]
    finishes: tuple[str, ...]
    tokens: int
    logprobs: tuple[dict[str, Any] | None, ...]


def answers(model: Path, dishes: Sequence[Dish]) -> list[Answer]:
    """Answer everything on the menu."""
    llm = LLM(str(model), num_blocks=4096, threads=1)
    names = TokenNames(llm.tokenizer)
    prompts, params = zip(*(choice for dish in dishes for choice in dish.choices()), strict=True)
    done = iter(llm.generate(prompts, [SamplingParams(**one) for one in params], progress=False))
    right = []
    for dish in dishes:
        choices = [next(done) for _ in dish.choices()]
        finishes = [choice.finish_reason for choice in choices if choice.finish_reason]
        right.append(
            Answer(
                tuple(choice.text for choice in choices),
                tuple(finish.value for finish in finishes),
                sum(len(choice.token_ids) for choice in choices),
                tuple(_logprobs(choice, names) for choice in choices),
            )
        )
    return right


def _logprobs(choice: Completion, names: TokenNames) -> dict[str, Any] | None:
    ledger = CompletionLedger(names)
    ledger.add(Detail(logprobs=tuple(choice.logprobs)))
    return ledger.take()
