"""Manner: how a load is sent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Manner:
    """How a load is sent.

    Attributes:
        api_key: for requests whose tenant has no key of its own.
        tenant_keys: keys by tenant.
        model: as the server calls it; None for the first that it lists.
        retries: times that a request is sent again, as the openai SDK does, >= 0.
        timeout_s: after which the client gives up an answer that is not complete, above 0.
        first_token_s, end_s: after which the server is to give it up, without its first or its
            last token; None: never.
        max_connections: at most so many at a time; None for as many as the system allows.
        vocab: token ids of prompts are below it, >= 1.
        text: prompts are words instead of token ids.
        prompt_seed: prompts of another seed have nothing in common with these, in a prefix cache
            either; None for the numbers of the load as they are.
        lower_first: the server takes a lower priority as more urgent.
        more: fields that each request has besides.
        seed: of the waits between retries.
    """

    api_key: str | None = None
    tenant_keys: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    retries: int = 0
    timeout_s: float = 600.0
    first_token_s: float | None = None
    end_s: float | None = None
    max_connections: int | None = None
    vocab: int = 1000
    text: bool = False
    prompt_seed: int | None = None
    lower_first: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def fields(self) -> dict[str, Any]:
        """Return the fields that each request has besides what the load says."""
        limits = {"first_token_timeout_ms": self.first_token_s, "timeout_ms": self.end_s}
        given = {name: round(1000 * limit) for name, limit in limits.items() if limit is not None}
        return given | dict(self.more)
