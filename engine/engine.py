"""Engine: the step loop of one replica, on a thread of its own.

A step is: plan (scheduler), forward (model), sample, detokenise, take the results.
The scheduler is touched under a lock, which is never held while the model runs, so
``submit`` and ``abort`` answer at once from any thread.  A block that an abort frees
during a forward cannot be reused before the next plan, which this same loop makes.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.invariants import check_invariants
from engine.request import FinishReason, Request, StepOutput, Token
from engine.runner import ModelRunner
from engine.sampling import Sampler, SampleRow
from engine.scheduler import Scheduler, SchedulerStats
from engine.step import StepExecutor, StepResult, reason_of
from engine.submission import (
    Delta,
    DuplicateKey,
    EngineFailed,
    Progress,
    StepReport,
    Submission,
)
from engine.text import Detokenizer, TokenBytes

logger = logging.getLogger(__name__)

# So many forward passes that raised, with no good one between them, are not the requests' fault.
MAX_FAILURES = 3


class NothingWorks(RuntimeError):
    """Forward pass after forward pass raised; ``reason`` is the last one's error."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True)
class _Live:
    """An unfinished request; ``generated`` grows with each step."""

    key: str
    row: SampleRow
    generated: list[int]
    stop_tokens: frozenset[int]
    text: Detokenizer


@dataclass(slots=True)
class _Read:
    """What a sampled token means for its request: new text, and whether it ends it."""

    live: _Live
    token: int
    text: str
    stop: bool


class Engine:
    """Continuous batching over one model and one KV pool."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        sampler: Sampler,
        token_bytes: TokenBytes,
        eos_token_ids: Sequence[int],
        on_step: Callable[[StepReport], None],
        rng: random.Random,
        monotonic: Callable[[], float] = time.monotonic,
        debug: bool = False,
    ) -> None:
        """Wire the parts; nothing runs before :meth:`start` or :meth:`step`.

        Args:
            scheduler: nobody else may use it.
            runner: runs the model over the scheduler's blocks.
            sampler: for logits as wide as the model's.
            token_bytes: of the model's tokenizer.
            eos_token_ids: tokens that end an answer unless it ignores them.
            on_step: called after every step, on the thread that made it.
            rng: draws the seeds that requests do not bring.
            monotonic: seconds, for :class:`Progress`.
            debug: check the scheduler's books after every step, which costs time.
        """
        self._scheduler = scheduler
        self._runner = runner
        self._executor = StepExecutor(runner, sampler)
        self._vocab = sampler.vocab
        self._token_bytes = token_bytes
        self._eos = frozenset(eos_token_ids)
        self._on_step = on_step
        self._rng = rng
        self._monotonic = monotonic
        self._debug = debug
        self._live: dict[int, _Live] = {}
        self._ids: dict[str, int] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._failure: BaseException | None = None
        self._failures = 0
        self._steps = 0
        self._stepping = False
        self._moved_at = monotonic()
        self._thread: threading.Thread | None = None

    # ---- from any thread ------------------------------------------------------------

    def submit(self, submission: Submission) -> None:
        """Queue a request; its deltas come through ``on_step``.

        Raises:
            AdmitError: it can never run here, or the queue is full.
            InvalidParam: a token is not in the vocabulary, or nothing is left to generate.
            DuplicateKey: its key is taken.
            EngineFailed: the step loop has ended.
        """
        submission.check_ids(self._vocab)
        params = submission.params
        generated = list(submission.generated)
        text = Detokenizer(self._token_bytes, params.stop, submission.generated)
        stop_tokens = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_tokens |= self._eos
        request = Request(
            prompt=list(submission.prompt),
            max_tokens=params.max_tokens,
            priority=submission.priority,
            arrival=submission.arrival,
            generated=generated,
        )
        with self._changed:
            if self._failure is not None:
                raise EngineFailed(repr(self._failure))
            if self._stopping:
                raise EngineFailed("it was stopped")
            if submission.key in self._ids:
                raise DuplicateKey(submission.key)
            seed = self._rng.getrandbits(63) if params.seed is None else params.seed
            id = self._scheduler.add(request)
            if not self._live and not self._stepping:
                self._moved_at = self._monotonic()
            row = SampleRow(params, seed, submission.prompt, generated)
            self._live[id] = _Live(submission.key, row, generated, stop_tokens, text)
            self._ids[submission.key] = id
            self._changed.notify()

    def abort(self, key: str) -> bool:
        """Drop a request; its blocks are free when this returns.

        Returns:
            Whether it was unfinished. No delta comes for it any more, except one that
            is on its way already.
        """
        with self._changed:
            id = self._ids.pop(key, None)
            if id is None:
                return False
            del self._live[id]
            self._scheduler.abort(id)
            return True

    def stats(self) -> SchedulerStats:
        """Where the scheduler stands."""
        with self._changed:
            return self._scheduler.stats()

    def keys(self) -> tuple[str, ...]:
        """The unfinished requests, in order of submission."""
        with self._changed:
            return tuple(self._ids)

    def progress(self) -> Progress:
        """Whether the loop moves."""
        with self._changed:
            # A step that hangs has work, also when its requests have been aborted meanwhile.
            busy = bool(self._live) or self._stepping
            return Progress(self._steps, busy, self._monotonic() - self._moved_at)

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the step loop, if one did."""
        return self._failure

    # ---- the loop -------------------------------------------------------------------

    def start(self) -> None:
        """Run the loop on a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """End the loop after the step that is under way; unfinished requests stay unfinished.

        Returns:
            Whether the thread ended within ``timeout`` seconds.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not self._stopping and not self._scheduler.has_unfinished():
                        self._changed.wait()
                    if self._stopping:
                        return
                self._judge(self.step())
        except BaseException as error:
            logger.exception("the step loop ended")
            self._fail(error)

    def step(self) -> StepResult:
        """Make one step and report it. Not to be called while the loop's thread runs."""
        with self._changed:
            plan = self._scheduler.schedule()
            batch = self._runner.prepare(plan, self._scheduler)
            ids = [*(chunk.id for chunk in plan.prefill), *plan.decode]
            ending = [*(chunk.id for chunk in plan.prefill if chunk.last), *plan.decode]
            live = {id: self._live[id] for id in ids}
            self._stepping = bool(ids)
        if not ids:  # everything was aborted before this step could plan it
            return StepResult({}, {})
        result = self._executor.run(batch, ids, [live[id].row for id in ending])
        reads = self._read_all(live, result)
        with self._changed:
            deltas = self._take(reads, result.errors)
            if self._debug:
                check_invariants(self._scheduler)
            report = StepReport(tuple(deltas), self._scheduler.stats())
            self._steps += 1
            self._stepping = False
            self._moved_at = self._monotonic()
        self._on_step(report)
        return result

    def _read_all(self, live: dict[int, _Live], result: StepResult) -> dict[int, _Read]:
        """Read every token; a request whose text fails joins the errors."""
        reads: dict[int, _Read] = {}
        for id, token in result.tokens.items():
            try:
                reads[id] = self._read(live[id], token)
            except Exception as error:
                logger.exception("a request's text failed")
                result.errors[id] = reason_of(error)
        return reads

    def _read(self, live: _Live, token: int) -> _Read:
        """Make text of a token and find out whether it ends the answer."""
        live.generated.append(token)
        if token in live.stop_tokens:
            # Its own text is not part of the answer; what was held back is.
            return _Read(live, token, live.text.flush(), stop=True)
        delta = live.text.push(token)
        return _Read(live, token, delta.text, delta.stopped)

    def _take(self, reads: dict[int, _Read], errors: dict[int, str]) -> list[Delta]:
        """Give the scheduler the results; requests aborted meanwhile drop out."""
        deltas: list[Delta] = []
        for id, reason in errors.items():
            if id in self._live:
                self._scheduler.abort(id)
                deltas.append(Delta(self._drop(id).key, error=reason))
        outputs = [StepOutput(id, read.token, read.stop) for id, read in reads.items()]
        finished: dict[int, FinishReason] = {}
        moved: list[int] = []
        for event in self._scheduler.on_step(outputs):
            if isinstance(event, Token):
                moved.append(event.id)
            else:
                finished[event.id] = event.reason
        for id in moved:
            read, finish = reads[id], finished.get(id)
            text = read.text
            if finish is not None:
                self._drop(id)
                if finish is FinishReason.LENGTH:
                    text += read.live.text.flush()
            deltas.append(Delta(read.live.key, (read.token,), text, finish))
        return deltas

    def _drop(self, id: int) -> _Live:
        live = self._live.pop(id)
        del self._ids[live.key]
        return live

    def _judge(self, result: StepResult) -> None:
        """Raise NothingWorks when it is not single requests that are broken."""
        if result.broken == 0:
            self._failures = 0
            return
        self._failures += result.broken
        if self._failures >= MAX_FAILURES:
            raise NothingWorks(next(iter(result.errors.values())))

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            deltas = []
            for id in list(self._live):
                self._scheduler.abort(id)
                deltas.append(Delta(self._drop(id).key, error=f"the engine has failed: {error!r}"))
            report = StepReport(tuple(deltas), self._scheduler.stats())
        try:
            self._on_step(report)
        except Exception:
            logger.exception("nobody hears of the engine's end")
