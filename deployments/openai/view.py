"""View: what a client sees of one choice, where that is more or less than its text."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from deployments.openai.call import Call, CallsMade, Finish, Job
from deployments.openai.logprobs import Ledger
from deployments.openai.tokens import TokenNames
from deployments.openai.tool_parser import CallParser, CallPiece
from engine.request import FinishReason
from engine.submission import Detail


class View:
    """One choice with an echo, with log-probabilities, with tools, or with nothing generated.

    Args:
        job: what was asked.
        ledger: for the log-probabilities, None if nobody wants them.
        parser: finds the calls of tools, None if there can be none.
    """

    def __init__(self, job: Job, ledger: Ledger | None, parser: CallParser | None = None) -> None:
        self._job = job
        self._ledger = ledger
        self._parser = parser
        self._pieces: list[CallPiece] = []
        self._begun = False

    @classmethod
    def of(cls, call: Call, index: int, names: TokenNames) -> "View | None":
        """Return the view of the choice with this index, None for one that is just its text."""
        job, parser = call.jobs[index], call.parser(index)
        told = job.params.logprobs is not None
        if not (told or job.mute or job.echo is not None or parser is not None):
            return None
        return cls(job, call.ledger(names, job) if told else None, parser)

    def see(
        self, text: str, finish: FinishReason | None, detail: Detail | None
    ) -> tuple[str, Finish | None]:
        """Return what the client sees of a delta's text and end."""
        if self._job.mute:
            text, finish = "", finish and FinishReason.LENGTH
            detail = detail and replace(detail, logprobs=())
        if self._ledger is not None and detail is not None:
            self._ledger.add(detail)
        if not self._begun:
            self._begun = True
            text = (self._job.echo or "") + text
        return (text, finish) if self._parser is None else self._parsed(self._parser, text, finish)

    def calls(self) -> Sequence[CallPiece]:
        """Return the pieces of calls that were seen since the last time."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def logprobs(self) -> dict[str, Any] | None:
        """Return the ``logprobs`` object of what was seen since the last time, if anything."""
        return None if self._ledger is None else self._ledger.take()

    @property
    def large(self) -> bool:
        """Whether to spell what was seen since the last time would hold up an event loop."""
        return self._ledger is not None and self._ledger.large

    def _parsed(
        self, parser: CallParser, text: str, finish: FinishReason | None
    ) -> tuple[str, Finish | None]:
        parts = [parser.push(text)]
        if finish is not None:
            parts.append(parser.end())
        self._pieces += [piece for part in parts for piece in part.pieces]
        content = "".join(part.content for part in parts)
        # A call that a stop string or the length cut short is none to be carried out.
        made = finish is FinishReason.STOP and parser.complete
        return content, CallsMade.TOOL_CALLS if made else finish
