"""Timeline: what a sequence says of its own course, for whoever records it."""

from typing import Protocol


class Timeline(Protocol):
    """Hears of one sequence's turns as they happen.

    ``first_token`` comes at most once, and may overtake the ``taken`` of its replica by a little;
    ``ended`` comes once and last. Each ``moved`` is followed by another ``taken``, unless the
    sequence ends before that.
    """

    @property
    def traceparent(self) -> str:
        """The W3C trace context for what is done elsewhere; empty if nobody traces it."""

    def taken(self, queued_s: float) -> None:
        """A replica took it, so many seconds after it began to look for one."""

    def first_token(self) -> None:
        """Its first token came."""

    def moved(self, reason: str) -> None:
        """It left its replica and goes on elsewhere; ``reason`` is "lost" or "drained"."""

    def ended(self, outcome: str, tokens: int) -> None:
        """It is over.

        Args:
            outcome: a finish reason, "abort" when the client left, a refusal's kind, or "error".
            tokens: how many it generated.
        """


class Untold:
    """A ``Timeline`` that nobody records."""

    traceparent = ""

    def taken(self, queued_s: float) -> None: ...

    def first_token(self) -> None: ...

    def moved(self, reason: str) -> None: ...

    def ended(self, outcome: str, tokens: int) -> None: ...


UNTOLD = Untold()
