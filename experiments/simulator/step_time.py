"""StepTime: how long a step takes."""

from typing import Protocol


class StepTime(Protocol):
    """Seconds of one step, its bookkeeping included; the same for the same arguments."""

    def seconds(self, prefill: int, pairs: int, decodes: int, context: int) -> float:
        """Return how long the step takes.

        Args:
            prefill: tokens of prompts.
            pairs: of a prompt's token and a token that it attends to, summed over ``prefill``.
            decodes: sequences that decode.
            context: tokens that these attend to, summed.
        """

    def copies(self, blocks: int) -> float:
        """Return how long it takes to move blocks between device and host memory."""
