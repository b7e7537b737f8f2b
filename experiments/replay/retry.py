"""Retry: when a request that got no answer is sent again, as the openai SDK does it."""

import email.utils
import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

_FIRST_S, _LONGEST_S, _LONGEST_TOLD_S = 0.5, 8.0, 120.0
_STATUSES = frozenset({408, 409, 429})


@dataclass(frozen=True, slots=True)
class Retry:
    """Sends again what was refused, what broke and what never reached the server.

    Source of the rule: the openai SDK for Python, version 3.

    Attributes:
        times: at most, >= 0.
        rng: spreads the waits of clients that were told none.
    """

    times: int
    rng: random.Random

    def wait_s(self, tried: int, status: int | None, headers: Mapping[str, str]) -> float | None:
        """Return the seconds until it is sent again; None if it is not.

        Args:
            tried: times that it was sent, >= 1.
            status: of the answer; None if there was none.
            headers: of the answer, by names that ignore case, or are in lower case.
        """
        told = _told(headers)
        if tried > self.times or not _again(status, headers, told):
            return None
        if told is not None and 0 < told <= _LONGEST_TOLD_S:
            return told
        # The exponent is bounded so that no float overflows.
        wait = min(_FIRST_S * 2.0 ** min(tried - 1, 10), _LONGEST_S)
        return wait * (1 - 0.25 * self.rng.random())


def _again(status: int | None, headers: Mapping[str, str], told: float | None) -> bool:
    if told is not None and told > _LONGEST_TOLD_S:
        return False
    if (asked := headers.get("x-should-retry")) in ("true", "false"):
        return asked == "true"
    return status is None or status in _STATUSES or status >= 500


def _told(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the server asks to wait, if it does."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) / unit
        except (KeyError, ValueError):
            continue
        return seconds if math.isfinite(seconds) else None
    date = email.utils.parsedate_tz(headers.get("retry-after", ""))
    return None if date is None else email.utils.mktime_tz(date) - time.time()
