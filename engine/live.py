"""Live: an unfinished request, from the engine's point of view."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from engine.guides import Matcher
from engine.logits import SampleRow
from engine.request import FinishReason
from engine.submission import Detail, Submission, TokenLogprobs
from engine.text import Detokenizer, TokenBytes


@dataclass(slots=True)
class Live:
    """One request; ``row.generated`` is ``generated``, which grows with each step.

    Attributes:
        id: the scheduler's name for it; -1 until it has one.
        submitted_at: monotonic seconds.
        started: some step has computed something of it.
        queued_s: how long it waited for that, until that has been told.
        cached: tokens of its prompt that a prefix cache held then, until that has been told.
        prompt: log-probabilities of the prompt from its second token on, as far as they
            are known; None if nobody asked for them, or they have been told.
        finish: why it has ended, set when its last token has been taken.
    """

    key: str
    row: SampleRow
    generated: list[int]
    text: Detokenizer
    submitted_at: float
    id: int = -1
    started: bool = False
    queued_s: float | None = None
    cached: int = 0
    prompt: list[TokenLogprobs] | None = None
    finish: FinishReason | None = None

    @classmethod
    def of(
        cls,
        submission: Submission,
        seed: int,
        eos: frozenset[int],
        token_bytes: TokenBytes,
        matcher: Matcher | None,
        now: float,
    ) -> Self:
        """Begin a request, or go on with one; what was generated is replayed silently.

        ``matcher`` has got as far as that.
        """
        params, generated = submission.params, list(submission.generated)
        stop_tokens = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos)
        row = SampleRow(params, seed, submission.prompt, generated, stop_tokens, matcher)
        text = Detokenizer(token_bytes, params.stop, generated, params.min_tokens)
        scores: list[TokenLogprobs] | None = [] if submission.scored else None
        return cls(submission.key, row, generated, text, now, prompt=scores)

    @property
    def prompt_top(self) -> int | None:
        """Likeliest tokens to tell with each of the prompt that is computed now."""
        return None if self.prompt is None else self.row.params.prompt_logprobs

    def start(self, now: float, cached: int) -> None:
        """Note that the first step computes something of it.

        Args:
            now: monotonic seconds.
            cached: tokens that a prefix cache held.
        """
        self.started = True
        self.queued_s = now - self.submitted_at
        # Who goes on from elsewhere has told what was found of its prompt there.
        self.cached = 0 if self.generated else cached

    def score(self, start: int, told: list[TokenLogprobs]) -> None:
        """Keep what a chunk from position ``start`` says of the prompt's next tokens.

        After a preemption a prompt is computed again from its first token, or goes on from
        ``start`` with what was swapped; what it said before that is kept.
        """
        if self.prompt is not None:
            self.prompt[start:] = told

    def take(self, token: int) -> bool:
        """Take a sampled token, before the next one can be chosen; return whether it ends it.

        Its text, which may end it too, is :meth:`tell`'s.
        """
        self.generated.append(token)
        row = self.row
        if token in row.stop_tokens:
            return True
        if (matcher := row.matcher) is None:
            return False
        matcher.push(token)
        return matcher.finished

    def tell(self, token: int) -> str:
        """Return what the newest token adds to the text; a stop string sets ``finish``."""
        text = self.text
        finish = self.finish
        if finish is FinishReason.STOP and token in self.row.stop_tokens:
            # Its own text is not part of the answer; what was held back is.
            return text.flush()
        told = text.feed(token)
        if text.stopped:
            self.finish = FinishReason.STOP
        elif finish is not None:
            told += text.flush()
        return told

    def detail(self, told: TokenLogprobs | None = None, moved: bool = False) -> Detail | None:
        """What there is to say beside tokens and text; each thing is said once.

        Args:
            told: how likely the new token was, if that was asked for.
            moved: there is a new token, so the prompt has been computed to its end.
        """
        queued_s, self.queued_s = self.queued_s, None
        cached, self.cached = self.cached, 0
        prompt: tuple[TokenLogprobs | None, ...] = ()
        if moved and self.prompt is not None:
            prompt, self.prompt = (None, *self.prompt), None
        if queued_s is None and told is None and not prompt:
            return None
        return Detail(queued_s, () if told is None else (told,), prompt, cached)


def prompt_tops(live: Iterable[Live]) -> dict[int, int]:
    """For each request whose prompt is to be scored, the likeliest tokens to tell."""
    return {one.id: top for one in live if (top := one.prompt_top) is not None}
