"""Prefill policies: how much of a prompt one step computes."""

from typing import Protocol

from engine.request import is_int, require


class PrefillPolicy(Protocol):
    """Decides the length of one request's next chunk. Has no side effects."""

    def chunk_len(self, remaining: int, budget: int, alone: bool) -> int:
        """Return how many tokens to compute now, 0 for none in this step.

        Args:
            remaining: tokens of the request whose K and V are not computed, >= 1.
            budget: tokens that this step may still take, >= 1.
            alone: nothing else is in this step so far.
        """
        ...


class WholePrompt:
    """A prompt in one piece: it waits until it fits, or for a step of its own."""

    def chunk_len(self, remaining: int, budget: int, alone: bool) -> int:
        """Return ``remaining`` if it fits the budget or the step is empty, else 0."""
        return remaining if alone or remaining <= budget else 0


class Chunked:
    """A prompt in pieces, so that a long one cannot hold up everybody's next token."""

    def __init__(self, max_chunk: int) -> None:
        """Cut chunks of at most ``max_chunk`` tokens.

        Raises:
            InvalidParam: ``max_chunk`` is below 1, which could never make progress.
        """
        require(is_int(max_chunk, 1), "max_chunk", max_chunk, "an integer from 1")
        self.max_chunk = max_chunk

    def chunk_len(self, remaining: int, budget: int, alone: bool) -> int:
        """Return the least of ``remaining``, ``budget`` and ``max_chunk``."""
        return min(remaining, budget, self.max_chunk)
