"""Verdict: what a user should know of a replay before the figures are believed."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from experiments.loads.load import Load
from experiments.replay.measured import Measured

LATE_MS: Final = 10.0
"""Up to here the client's own lateness is no matter."""

_PROMPTS_OFF: Final = 0.02
_REASONS: Final = 8


def verdict(load: Load, measured: Measured) -> Iterator[str]:
    """Return a line for everything that was not as asked for."""
    tally, counts = measured.tally, measured.run.counts
    if measured.sent < len(load.arrivals):
        yield f"interrupted: {measured.sent} of {len(load.arrivals)} requests were sent"
    if counts["lateness_p99_ms"] > LATE_MS:
        yield (
            f"the client itself was late: 1 in 100 requests was sent more than "
            f"{counts['lateness_p99_ms']:.0f} ms after its time, the latest by "
            f"{counts['lateness_max_ms']:.0f} ms. It needs more CPU, or a machine of its own"
        )
    if tally.short:
        yield f"{tally.short} answers had fewer tokens than the load asks for"
    if tally.uncounted:
        yield f"the server did not count the tokens of {tally.uncounted} answers: events count"
    if abs(tally.prompt_tokens - tally.asked_tokens) > _PROMPTS_OFF * tally.asked_tokens:
        yield (
            f"the server counts {tally.prompt_tokens} tokens of prompts where the load has "
            f"{tally.asked_tokens}"
        )
    reasons = Counter(one.reason for one in measured.run.outcomes if one.status != "ok")
    for reason, count in reasons.most_common(_REASONS):
        message = tally.examples.get(reason, "")
        yield f"{count} times {reason}" + (f": {message}" if message else "")
