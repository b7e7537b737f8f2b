"""Stream: an answer as it comes, in server-sent events."""

import json
from typing import Any

from experiments.replay.refusal import Refusal, refusal


class Stream:
    """Reads the events of one answer of ``/v1/completions``.

    An event that carries text counts as a token's. A token whose text does not show yet has no
    event of its own: it makes a gap look longer, never a count wrong, since the server counts.

    Attributes:
        first_at: when the first event with a choice came; None before.
        last_at: when the last such event came; None before.
        longest_gap_s: between two of them.
        events: of them.
        prompt_tokens, output_tokens, cached_tokens: as the server counts; None unless it did.
        error: that the server sent in place of the rest.
        done: the server said that nothing follows.
    """

    def __init__(self) -> None:
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.longest_gap_s = 0.0
        self.events = 0
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.error: Refusal | None = None
        self.done = False
        self._rest = b""

    def feed(self, data: bytes, now: float) -> None:
        """Take what came at ``now``, in seconds; it may end anywhere, even within an event."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    def close(self, now: float) -> None:
        """Take the last line, if nothing ended it."""
        self.feed(b"\n", now)

    def _event(self, event: bytes, now: float) -> None:
        if event == b"[DONE]":
            self.done = True
        # In a JSON text, quotes are escaped: both are keys. Most events are read no further,
        # which is half of what a token costs here.
        elif b'"choices":' in event and b'"completion_tokens"' not in event:
            self._token(now)
        else:
            self._whole(event, now)

    def _token(self, now: float) -> None:
        if self.last_at is None:
            self.first_at = now
        else:
            self.longest_gap_s = max(self.longest_gap_s, now - self.last_at)
        self.last_at = now
        self.events += 1

    def _whole(self, event: bytes, now: float) -> None:
        try:
            fields = json.loads(event)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            self.error = Refusal("not an event", f"the server sent {event[:200]!r}")
        elif fields.get("error") or fields.get("object") == "error":
            self.error = refusal(fields)
        else:
            if fields.get("choices"):
                self._token(now)
            if isinstance(usage := fields.get("usage"), dict):
                self._usage(usage)

    def _usage(self, usage: dict[str, Any]) -> None:
        self.prompt_tokens = _count(usage.get("prompt_tokens"))
        self.output_tokens = _count(usage.get("completion_tokens"))
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            self.cached_tokens = _count(details.get("cached_tokens"))


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
