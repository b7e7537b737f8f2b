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
from functools import partial

from engine.batch_builder import BatchBuilder
from engine.failures import Failures
from engine.flight import Flight, Landed
from engine.guides import Guides, Matcher
from engine.host_blocks import HostBlocks
from engine.invariants import check_invariants
from engine.live import Live, prompt_tops
from engine.plan import ScheduleOutput
from engine.prefix_cache import BlockManager
from engine.request import InvalidParam
from engine.runner import Runner
from engine.sampling import Sampler
from engine.scheduler import Scheduler, SchedulerStats
from engine.start_limits import StartLimits
from engine.step import StepExecutor, StepResult
from engine.step_times import StepTimes
from engine.submission import (
    EXPIRED,
    Delta,
    DuplicateKey,
    EngineFailed,
    Progress,
    Standing,
    StepReport,
    Submission,
)
from engine.text import TokenBytes
from engine.worker import Worker

logger = logging.getLogger(__name__)


class Engine:
    """Continuous batching over one model and one KV pool."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        sampler: Sampler,
        token_bytes: TokenBytes,
        eos_token_ids: Sequence[int],
        on_step: Callable[[StepReport], None],
        rng: random.Random,
        monotonic: Callable[[], float] = time.monotonic,
        debug: bool = False,
        guides: Guides | None = None,
        times: StepTimes | None = None,
        host: HostBlocks | None = None,
        overlap: bool = False,
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
            monotonic: seconds, for :class:`Progress` and how long requests waited.
            debug: check the scheduler's books after every step, which costs time.
            guides: for requests that bring a grammar, which are refused if None.
            times: is told what every step cost, for whoever decides by it.
            host: makes the copies that the scheduler orders, if it swaps.
            overlap: plan the next step, and make the last one's text, while the model runs
                on a thread of its own.
        """
        self._scheduler = scheduler
        limits = scheduler.config
        self._builder = BatchBuilder(scheduler, limits.max_seqs, limits.max_model_len)
        self._executor = StepExecutor(runner, sampler)
        self._vocab = sampler.vocab
        self._token_bytes = token_bytes
        self._eos = frozenset(eos_token_ids)
        self._on_step = on_step
        self._rng = rng
        self._monotonic = monotonic
        self._debug = debug
        self._guides = guides
        self._times = times
        self._host = host
        self._live: dict[int, Live] = {}
        self._start_limits = StartLimits()
        self._ids: dict[str, int] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._failure: BaseException | None = None
        self._failures = Failures()
        self._worker: Worker[StepResult] | None = Worker("model") if overlap else None
        self._flight: Flight | None = None
        self._landed: Landed | None = None
        self._steps = 0
        self._stepping = False
        self._moved_at = monotonic()
        self._thread: threading.Thread | None = None

    # ---- from any thread ------------------------------------------------------------

    def compile(self, submission: Submission) -> Matcher | None:
        """Return the matcher of its grammar, None without one; nothing is queued.

        This may take a second, so :meth:`submit` can be given what was made elsewhere.

        Raises:
            AdmitError, InvalidParam, DuplicateKey, EngineFailed: as ``submit`` would now.
                What has no room is not compiled.
        """
        grammar, guides = submission.params.grammar, self._guides
        if grammar is None:
            return None
        if guides is None:
            raise InvalidParam("grammar", "one", "None in an engine without guides")
        submission.check_ids(self._vocab)
        with self._changed:
            self._require_open(submission.key)
            self._scheduler.check(submission.request())
        return guides.matcher(grammar, submission.generated)

    def submit(self, submission: Submission, matcher: Matcher | None = None) -> None:
        """Queue a request; its deltas come through ``on_step``.

        Args:
            submission: the request.
            matcher: what :meth:`compile` made of it; if None, it is made now.

        Raises:
            AdmitError: it can never run here, or the queue is full.
            InvalidParam: a token is not in the vocabulary, nothing is left to generate, or
                the grammar is none.
            DuplicateKey: its key is taken.
            EngineFailed: the step loop has ended.
        """
        submission.check_ids(self._vocab)
        params, now = submission.params, self._monotonic()
        if matcher is None:
            matcher = self.compile(submission)
        seed = self._rng.getrandbits(63) if params.seed is None else params.seed
        live = Live.of(submission, seed, self._eos, self._token_bytes, matcher, now)
        with self._changed:
            self._require_open(submission.key)
            live.id = id = self._scheduler.add(submission.request())
            if not self._live and not self._stepping:
                self._moved_at = self._monotonic()
            if submission.start_by is not None:
                self._start_limits.add(id, submission.start_by)
            self._live[id] = live
            self._ids[submission.key] = id
            self._changed.notify()

    def _require_open(self, key: str) -> None:
        if self._failure is not None:
            raise EngineFailed(repr(self._failure))
        if self._stopping:
            raise EngineFailed("it was stopped")
        if key in self._ids:
            raise DuplicateKey(key)

    def abort(self, key: str) -> bool:
        """Drop a request; its blocks are free when this returns.

        Returns:
            Whether it was unfinished. No delta comes for it any more, except one that
            is on its way already.
        """
        with self._changed:
            id = self._ids.get(key)
            if id is None:
                return False
            self._drop(id)
            self._scheduler.abort(id)
            return True

    def stats(self) -> SchedulerStats:
        """Where the scheduler stands."""
        with self._changed:
            return self._scheduler.stats()

    def keys(self) -> tuple[str, ...]:
        """The requests whose end has not been told, in order of submission."""
        with self._changed:
            return tuple(self._ids)

    def standing(self) -> Standing:
        """Where the scheduler stands, and with whom: both at the same moment."""
        with self._changed:
            known = self._scheduler
            keys = frozenset(key for key, id in self._ids.items() if id in known)
            return Standing(known.stats(), keys)

    def prefix_events(self) -> tuple[list[int], list[int]]:
        """Hashes of blocks that the prefix cache finds since the last call, and no more.

        They are those of :func:`engine.prefix_hash.chain`. Nothing without a prefix cache.
        """
        blocks = self._scheduler.blocks
        with self._changed:
            return blocks.take_events() if isinstance(blocks, BlockManager) else ([], [])

    def held_prefixes(self, most: int) -> list[int]:
        """Hashes of blocks that the prefix cache finds; the events begin anew.

        Args:
            most: how many at most; of more, those that it will keep longest.
        """
        blocks = self._scheduler.blocks
        with self._changed:
            return blocks.held_prefixes(most) if isinstance(blocks, BlockManager) else []

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
            while self._wait_for_work():
                self._failures.note(self.step())
            if self._worker is not None and self._flight is not None:
                self._arrive(self._flight, self._worker)
                self._tell()
        except BaseException as error:
            logger.exception("the step loop ended")
            self._fail(error)

    def _wait_for_work(self) -> bool:
        """Return when there is a step to make; False if there shall be none any more."""
        with self._changed:
            while not (self._stopping or self._flight or self._scheduler.has_unfinished()):
                self._changed.wait()
            return not self._stopping

    def step(self) -> StepResult:
        """Make one step and report it. Not to be called while the loop's thread runs.

        With overlap, the next step is under way when this returns, and what this one did is
        reported in the course of that. Who has nothing more to wait for has been told all.
        """
        flight = self._flight or self._take_off(self._scheduler.schedule)
        if flight is None:  # all was aborted or over before this step could plan it
            return StepResult({}, {})
        if self._worker is None:
            result = self._compute(flight)
            self._landed = self._land(flight, result)
        else:
            result = self._arrive(flight, self._worker)
            if not self._stopping:
                self._flight = self._take_off(self._scheduler.resume)
        if self._flight is None:
            self._tell()
        return result

    def _arrive(self, flight: Flight, worker: Worker[StepResult]) -> StepResult:
        """Do what need not wait for the tokens of the step in flight, then take them."""
        self._flight = flight
        self._tell()
        with self._changed:
            self._scheduler.schedule_ahead()
        result = worker.result()
        self._flight = None
        self._landed = self._land(flight, result)
        return result

    def _compute(self, flight: Flight) -> StepResult:
        """Run the model; what is swapped has to be in its place before, in order of the steps."""
        if self._host is not None:
            self._host.make(flight.copies)
        return flight.run(self._executor)

    def _take_off(self, plan: Callable[[], ScheduleOutput]) -> Flight | None:
        """Take from the scheduler what the step of a plan needs; None if it has no rows."""
        with self._changed:
            expired = self._expire()
            flight = self._prepare(plan())
            self._stepping = flight is not None
            stats = self._scheduler.stats()
        if flight is not None and self._worker is not None:
            self._worker.start(partial(self._compute, flight))
        if expired:
            self._on_step(StepReport(tuple(expired), stats))
        return flight

    def _prepare(self, plan: ScheduleOutput) -> Flight | None:
        if not (plan.prefill or plan.decode):
            return None
        tops = prompt_tops(self._live[chunk.id] for chunk in plan.prefill)
        batch, copies = self._builder.prepare(plan, tops), self._scheduler.take_copies()
        flight = Flight.of(plan, batch, self._live, copies)
        now = self._monotonic()
        for live in flight.starting():
            live.start(now, self._scheduler.cached_tokens(live.id))
            self._start_limits.discard(live.id)
        return flight

    def _moved(self, flight: Flight) -> None:
        """Note that a step's results are there, and what it cost.

        That is the time since the results before it, as those see it who wait for tokens,
        or since a request came to an idle engine.
        """
        now = self._monotonic()
        # What copies took is no price of tokens; whoever swaps by that would swap ever more.
        if self._times is not None and not flight.copies:
            self._times.observe(*flight.plan.work, now - self._moved_at)
        self._moved_at = now

    def _expire(self) -> list[Delta]:
        """Drop what was not started in time."""
        deltas: list[Delta] = []
        for id in self._start_limits.pop_over(self._scheduler.now()):
            self._scheduler.abort(id)
            deltas.append(Delta(self._drop(id).key, error=EXPIRED))
        return deltas

    def _land(self, flight: Flight, result: StepResult) -> Landed:
        """Take a step's tokens; requests that were aborted meanwhile drop out."""
        stops = flight.take(result)
        landed = Landed(flight.lives, result)
        with self._changed:
            for id, reason in result.errors.items():
                if (live := self._live.get(id)) is not None:
                    self._scheduler.abort(id)
                    landed.fail(live, reason)
            for id, finish in self._scheduler.advance(result.tokens, stops).items():
                self._live[id].finish = finish
            if self._debug:
                check_invariants(self._scheduler)
            self._steps += 1
            self._stepping = False
            self._moved(flight)
        return landed

    def _tell(self) -> None:
        """Make text of the last step's tokens and report them, unless that has been done."""
        landed, self._landed = self._landed, None
        if landed is None:
            return
        landed.tell()
        known = self._live
        with self._changed:
            told = zip(landed.ids, landed.deltas, strict=True)
            deltas = tuple([delta for id, delta in told if id in known])
            for id in landed.over:
                if id in known:
                    self._scheduler.abort(id)
                    self._drop(id)
            report = StepReport(deltas, self._scheduler.stats())
        self._on_step(report)

    def _drop(self, id: int) -> Live:
        live = self._live.pop(id)
        del self._ids[live.key]
        self._start_limits.discard(id)
        return live

    def _fail(self, error: BaseException) -> None:
        try:
            self._tell()
        except Exception:
            logger.exception("the last step's tokens cannot be told")
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
