"""Served: the one model, and how much a request may ask of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deployments.openai.errors import BadRequest, unknown_model
from deployments.openai.tool_formats import Dialect
from deployments.validation import show


@dataclass(frozen=True, slots=True)
class Served:
    """The model that is served, and how much one request may ask of it.

    Attributes:
        name: as clients spell it.
        max_model_len: prompt and answer together, in tokens.
        vocab_size: token ids are below it.
        max_prompts: choices of one request, those of all its prompts together.
        priorities: lowest and highest that the client may ask for.
        vllm_priority: the body's priority counts as in vLLM, lower being more urgent.
        tiers: the priority of each service tier beside ``auto`` and ``default``.
        dialect: how the model calls tools, None if its chat template knows none.
        defaults: fields that a request has unless it says otherwise.
        longest_token: characters that one token stands for at most, None if not known.
    """

    name: str
    max_model_len: int
    vocab_size: int
    max_prompts: int = 128
    priorities: tuple[int, int] = (-1_000, 1_000)
    vllm_priority: bool = False
    tiers: Mapping[str, int] = field(default_factory=dict)
    dialect: Dialect | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    longest_token: int | None = None

    def within(self, low: int | None, high: int | None) -> "Served":
        """Return the same for a client who may ask only for these priorities; None is any."""
        if low is None and high is None:
            return self
        least, most = self.priorities
        return replace(
            self,
            priorities=(least if low is None else low, most if high is None else high),
        )

    def card(self, created: int) -> dict[str, Any]:
        """Return the entry of GET /v1/models, and the body of GET /v1/models/{model}."""
        return {
            "id": self.name,
            "object": "model",
            "created": created,
            "owned_by": "tidegate",
            "max_model_len": self.max_model_len,
        }

    def listing(self, created: int) -> dict[str, Any]:
        """Return the body of GET /v1/models; ``created`` is a Unix time in seconds."""
        return {"object": "list", "data": [self.card(created)]}

    def filled(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request's fields, with the defaults of those that it leaves out."""
        return {**self.defaults, **body}

    def require_name(self, body: Mapping[str, Any]) -> None:
        """Check that a request is for this model; without a name, it is.

        Raises:
            NotFound: another model.
            BadRequest: the name is not a string.
        """
        name = body.get("model", self.name)
        if not isinstance(name, str):
            raise BadRequest(f"'model' must be a string, not {show(name)}.", "model")
        if name != self.name:
            raise unknown_model(name)

    def require_ids(self, ids: "list[int] | tuple[int, ...]", field: str) -> None:
        """Check that all token ids are in the vocabulary.

        Raises:
            BadRequest: one is not; in the model it would be an index out of range.
        """
        if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            bad = next(i for i in ids if not 0 <= i < self.vocab_size)
            raise BadRequest(
                f"'{field}' must hold token ids from 0 to {self.vocab_size - 1}, not {show(bad)}.",
                field,
            )
