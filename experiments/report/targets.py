"""Targets: what a client was promised."""

from dataclasses import dataclass

from experiments.simulator.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Targets:
    """The service level that a run is judged by.

    Attributes:
        ttft_s: longest time to first token, in seconds; None: any.
        tpot_s: longest time per output token after the first, in seconds; None: any.

    Raises:
        ValueError: a target is not above 0.
    """

    ttft_s: float | None = 2.0
    tpot_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value}")

    def met(self, outcome: Outcome) -> bool:
        """Whether the request was answered in full and within every target.

        One that was refused or failed has missed them: otherwise refusing the slow ones would
        look like good service. An answer of one token has no time per output token to miss.
        """
        if outcome.status != "ok":
            return False
        ttft, tpot = outcome.ttft_s, outcome.tpot_s
        if self.ttft_s is not None and (ttft is None or ttft > self.ttft_s):
            return False
        return self.tpot_s is None or tpot is None or tpot <= self.tpot_s

    def __str__(self) -> str:
        parts = []
        if self.ttft_s is not None:
            parts.append(f"the first token within {self.ttft_s:g} s")
        if self.tpot_s is not None:
            parts.append(f"at most {self.tpot_s * 1000:g} ms per token after it")
        return " and ".join(parts) or "an answer, however late"
