"""Engine: what one replica computes with: requests in from any thread, deltas out.

A loop (:mod:`engine.step_loop`) on a thread of its own makes the steps. The scheduler is
touched under a lock, which is never held while the model runs, so ``submit`` and ``abort``
answer at once.  A block that an abort frees during a forward cannot be reused before a later
plan, which is computed after it.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence

from engine.failures import Failures
from engine.guides import Guides, Matcher
from engine.host_blocks import HostBlocks
from engine.live import Live
from engine.lives import Lives
from engine.pipeline import Pipeline
from engine.prefix_cache import BlockManager
from engine.request import InvalidParam
from engine.runner import Runner
from engine.sampling import Sampler
from engine.scheduler import Scheduler, SchedulerStats
from engine.step import StepExecutor, StepResult
from engine.step_loop import StepLoop
from engine.step_times import StepTimes
from engine.submission import (
    Delta,
    DuplicateKey,
    EngineFailed,
    Progress,
    Standing,
    StepReport,
    Submission,
)
from engine.text import TokenBytes

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
        self._vocab = sampler.vocab
        self._token_bytes = token_bytes
        self._eos = frozenset(eos_token_ids)
        self._rng = rng
        self._monotonic = monotonic
        self._guides = guides
        self._lives = Lives()
        self._changed = threading.Condition()
        self._loop = StepLoop(
            scheduler,
            self._lives,
            self._changed,
            Pipeline(StepExecutor(runner, sampler), host, overlap),
            on_step,
            monotonic,
            times,
            sampler.asynchronous,
            debug,
        )
        self._failure: BaseException | None = None
        self._failures = Failures()
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
            live.id = self._scheduler.add(submission.request())
            self._loop.wake()
            self._lives.add(live, submission.start_by)
            self._changed.notify()

    def _require_open(self, key: str) -> None:
        if self._failure is not None:
            raise EngineFailed(repr(self._failure))
        if self._loop.closing:
            raise EngineFailed("it was stopped")
        if key in self._lives:
            raise DuplicateKey(key)

    def abort(self, key: str) -> bool:
        """Drop a request; its blocks are free when this returns.

        Returns:
            Whether it was unfinished. No delta comes for it any more, except one that
            is on its way already.
        """
        with self._changed:
            id = self._lives.id_of(key)
            if id is None:
                return False
            self._lives.drop(id)
            self._scheduler.abort(id)
            return True

    def stats(self) -> SchedulerStats:
        """Where the scheduler stands."""
        with self._changed:
            return self._scheduler.stats()

    def keys(self) -> tuple[str, ...]:
        """The requests whose end has not been told, in order of submission."""
        with self._changed:
            return self._lives.keys()

    def standing(self) -> Standing:
        """Where the scheduler stands, and with whom: both at the same moment."""
        with self._changed:
            known = self._scheduler
            keys = frozenset(live.key for live in self._lives if live.id in known)
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
            return self._loop.progress()

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
            self._loop.closing = True
            self._changed.notify()
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def step(self) -> StepResult:
        """Make one step and report it. Not to be called while the loop's thread runs.

        With overlap, the next step is under way when this returns, and what this one did is
        reported in the course of that. Who has nothing more to wait for has been told all.
        """
        return self._loop.step()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._failures.note(self._loop.step())
            self._loop.drain()
        except BaseException as error:
            logger.exception("the step loop ended")
            self._fail(error)

    def _wait_for_work(self) -> bool:
        """Return when there is a step to make; False if there shall be none any more."""
        loop = self._loop
        with self._changed:
            while not (loop.closing or loop.under_way or self._scheduler.has_unfinished()):
                self._changed.wait()
            return not loop.closing

    def _fail(self, error: BaseException) -> None:
        try:
            self._loop.tell()
        except Exception:
            logger.exception("the last step's tokens cannot be told")
        with self._changed:
            self._failure = error
            deltas = []
            for live in [*self._lives]:
                self._scheduler.abort(live.id)
                self._lives.drop(live.id)
                deltas.append(Delta(live.key, error=f"the engine has failed: {error!r}"))
            report = StepReport(tuple(deltas), self._scheduler.stats())
        try:
            self._loop.on_step(report)
        except Exception:
            logger.exception("nobody hears of the engine's end")
