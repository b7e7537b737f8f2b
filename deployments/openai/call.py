"""A call: one HTTP request, understood, with what the engine must do for it.

The two endpoints differ in how a prompt comes about and in how a choice is spelt; what
they share is here.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, TypeAlias

from deployments.openai.logprobs import Ledger
from deployments.openai.terms import Terms
from deployments.openai.tokens import TokenNames
from deployments.openai.tool_parser import CallParser, CallPiece
from deployments.prefix import Prefix
from engine.request import FinishReason, SamplingParams

_ID_BITS = 128


class CallsMade(StrEnum):
    """Why a choice ended that the engine knows only as a text; the value is OpenAI's."""

    TOOL_CALLS = "tool_calls"


Finish: TypeAlias = FinishReason | CallsMade


@dataclass(frozen=True, slots=True)
class Job:
    """One choice to generate; its place in ``Call.jobs`` is the choice's index.

    Attributes:
        prompt: token ids.
        params: for the engine, which generates one token at least.
        echo: the prompt's text, if it is to stand before the answer.
        mute: nothing is to be generated: what the engine does generate is dropped.
        prefix: of the prompt; None if the router does not look.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    echo: str | None = None
    mute: bool = False
    prefix: Prefix | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """What came of a job.

    Attributes:
        text: the answer, an echoed prompt included.
        finish: why it ended.
        logprobs: the ``logprobs`` object, if the client asked for one.
        calls: of tools, in pieces.
    """

    text: str
    finish: Finish
    logprobs: dict[str, Any] | None = None
    calls: Sequence[CallPiece] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call, all choices together; a prompt counts once, however many it has."""

    prompt: int
    completion: int
    cached: int = 0

    def body(self) -> dict[str, Any]:
        """Return the ``usage`` object."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


@dataclass(frozen=True, slots=True)
class Shape:
    """How an endpoint spells a stream's chunks; the strings are pieces of compact JSON.

    Attributes:
        object: the chunk's ``object``.
        opening: sent once for each choice, when its first token exists; None sends an
            empty text instead when that token has none.
        text: what stands before the text, as a JSON string; ``after`` follows it.
        after: what stands after the text.
        closing: what stands in the chunk that says why the choice ended.
    """

    object: str
    opening: str | None
    text: str
    after: str
    closing: str


@dataclass(frozen=True, slots=True)
class Call(ABC):
    """One HTTP request.

    Attributes:
        id: of the answer.
        created: Unix time in seconds.
        model: name of the model, for the answer.
        terms: how the client wants to be served.
        jobs: one for each choice; those of a prompt stand together.
        each: choices of each prompt.
        form: the field in which the client asked for a form of the answer, if it did.
    """

    id: str
    created: int
    model: str
    terms: Terms
    jobs: tuple[Job, ...]
    each: int = 1
    form: str | None = None

    object: ClassVar[str]
    shape: ClassVar[Shape]

    @abstractmethod
    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        """Return one entry of ``choices`` in an answer that is not streamed."""

    @abstractmethod
    def ledger(self, names: TokenNames, job: Job) -> Ledger:
        """Return an empty list of log-probabilities, for a choice that is to have one."""

    def parser(self, index: int) -> CallParser | None:
        """Return what finds the calls of tools in a choice, None if there can be none."""
        return None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, for the usage."""
        return sum(len(job.prompt) for job in self.jobs[:: self.each])

    def answer(
        self, choices: Sequence[Choice], usage: Usage, fingerprint: str | None
    ) -> dict[str, Any]:
        """Return the body of an answer that is not streamed.

        Args:
            choices: in the order of ``jobs``.
            usage: of all jobs together.
            fingerprint: of the replica's numerics.
        """
        body = {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": fingerprint,
            "choices": [self.choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage.body(),
        }
        tier = self.terms.service_tier
        return body if tier is None else {**body, "service_tier": tier}


def new_id(prefix: str, rng: random.Random) -> str:
    """Return an id for an answer."""
    return f"{prefix}-{rng.getrandbits(_ID_BITS):032x}"
