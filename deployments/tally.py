"""Tally: what one sequence counts on its way, and tells whoever records it."""

import time

from deployments.messages import RefusalKind
from deployments.metrics import Counts, priority_class
from deployments.order import Order
from deployments.timeline import Timeline
from engine.submission import Detail


class Tally:
    """Counts each thing that happens to a sequence once, in whichever of its lives it happens.

    Args:
        order: what is carried out.
        counts: where to count.
        timeline: hears of its turns.
    """

    def __init__(self, order: Order, counts: Counts, timeline: Timeline) -> None:
        self._order = order
        self._counts = counts
        self._timeline = timeline
        self._looks_since = order.began  # when it began to look for a replica
        self._over = False
        self._moved = order.began  # when the newest token came
        self._tokens = 0
        self._taken_s: float | None = None  # from its arrival until a replica took it
        self._queued_s: float | None = None  # from there to the first step that computed some of it
        self._waited = False

    def taken(self) -> None:
        """A replica has taken it; its first events may have come before this."""
        if self._taken_s is None:
            tokens = len(self._order.prompt)
            self._counts.add("prompt_tokens_total", tokens)
            self._tenant_used(tokens)
        now = time.monotonic()
        self._timeline.taken(now - self._looks_since)
        if not self._waited:
            self._taken_s = now - self._order.began
            self._observe_wait()

    def event(self, tokens: tuple[int, ...], finish: str | None, detail: Detail | None) -> None:
        """A replica has sent something of it."""
        now = time.monotonic()
        if self._queued_s is None:
            self._queued_s = (detail.queued_s if detail is not None else None) or 0.0
            self._observe_wait()
        if tokens:
            self._came(tokens, now)
        if finish is not None:
            self._counts.add("request_success_total", 1, (("finished_reason", finish),))
            self._counts.observe("e2e_request_latency_seconds", now - self._order.began)
            self._end(finish)

    def resumed(self, reason: str) -> None:
        """It goes on elsewhere."""
        self._counts.add("request_resumed_total", 1, (("reason", reason),))
        self._looks_since = time.monotonic()
        self._timeline.moved(reason)

    def refused(self, kind: RefusalKind) -> None:
        """It was turned away."""
        self._counts.add("admission_rejections_total", 1, (("reason", kind.value),))
        self._end(kind.value)

    def expired(self, limit: str) -> None:
        """It was given up since its time was over, whether or not it had begun."""
        self._counts.add("request_expired_total", 1, (("limit", limit),))
        self._end(RefusalKind.EXPIRED.value)

    def failed(self) -> None:
        """It ended with an error."""
        self._counts.add("request_errors_total")
        self._end("error")

    def aborted(self) -> None:
        """Its client has left, unless it was over before that."""
        if not self._over:
            self._counts.add("request_success_total", 1, (("finished_reason", "abort"),))
            self._end("abort")

    def _end(self, outcome: str) -> None:
        if not self._over:
            self._over = True
            self._timeline.ended(outcome, self._tokens)

    def _came(self, tokens: tuple[int, ...], now: float) -> None:
        if self._tokens:
            each = (now - self._moved) / len(tokens)
            self._counts.observe("inter_token_latency_seconds", each, times=len(tokens))
        else:
            self._counts.observe("time_to_first_token_seconds", now - self._order.began)
            self._timeline.first_token()
        self._moved = now
        self._tokens += len(tokens)
        self._counts.add("generation_tokens_total", len(tokens))
        self._counts.serve(self._order.tenant, self._order.priority, len(tokens))
        self._tenant_used(len(tokens))

    def _observe_wait(self) -> None:
        if self._taken_s is None or self._queued_s is None:
            return
        self._waited = True
        labels = priority_class(self._order.priority)
        self._counts.observe("request_queue_time_seconds", self._taken_s + self._queued_s, labels)

    def _tenant_used(self, tokens: int) -> None:
        if self._order.tenant:
            self._counts.add("tenant_tokens_total", tokens, (("tenant", self._order.tenant),))
