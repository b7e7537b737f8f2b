"""View: what a client sees of one choice, where that is more or less than its text."""

from dataclasses import replace
from typing import Any

from deployments.openai.call import Call, Job
from deployments.openai.logprobs import Ledger
from deployments.openai.tokens import TokenNames
from engine.request import FinishReason
from engine.submission import Detail


class View:
    """One choice with an echo, with log-probabilities, or with nothing generated.

    Args:
        job: what was asked.
        ledger: for the log-probabilities, None if nobody wants them.
    """

    def __init__(self, job: Job, ledger: Ledger | None) -> None:
        self._job = job
        self._ledger = ledger
        self._begun = False

    @classmethod
    def of(cls, call: Call, job: Job, names: TokenNames) -> "View | None":
        """Return the view of a choice, None for one that is just its text."""
        told = job.params.logprobs is not None
        if not (told or job.mute or job.echo is not None):
            return None
        return cls(job, call.ledger(names, job) if told else None)

    def see(
        self, text: str, finish: FinishReason | None, detail: Detail | None
    ) -> tuple[str, FinishReason | None]:
        """Return what the client sees of a delta's text and end."""
        if self._job.mute:
            text, finish = "", finish and FinishReason.LENGTH
            detail = detail and replace(detail, logprobs=())
        if self._ledger is not None and detail is not None:
            self._ledger.add(detail)
        if not self._begun:
            self._begun = True
            text = (self._job.echo or "") + text
        return text, finish

    def logprobs(self) -> dict[str, Any] | None:
        """Return the ``logprobs`` object of what was seen since the last time, if anything."""
        return None if self._ledger is None else self._ledger.take()
