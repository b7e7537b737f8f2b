"""StepLoop: makes an engine's steps, one after the other.

A step is: plan (scheduler), forward (model), sample, take the results, detokenise, report.
The lock that it shares with its engine is never held while the model runs, nor while text is
made or somebody is told.

With overlap a step's text is made, and the next step planned, while the next is computed.
Where a device chooses tokens by itself (:attr:`engine.sampling.Sampler.asynchronous`), the next
step is launched, too, before the tokens of the one under way are known here: it takes them from
where they lie. Who turns out to have ended is in it for nothing, once. A step waits for the
tokens if somebody's next choice depends on which they are.
"""

import logging
import threading
from collections.abc import Callable, Sequence

from engine.batch_builder import BatchBuilder
from engine.flight import Flight, Landed
from engine.invariants import check_invariants
from engine.live import prompt_tops
from engine.lives import Lives
from engine.pipeline import Pipeline
from engine.plan import ScheduleOutput
from engine.scheduler import Scheduler
from engine.step import StepResult
from engine.step_times import StepTimes
from engine.submission import EXPIRED, Delta, Progress, StepReport

logger = logging.getLogger(__name__)


class StepLoop:
    """Makes steps for the requests of an engine. One thread makes them.

    Attributes:
        closing: no more steps are to be launched; set from any thread.
        on_step: called after every step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        lives: Lives,
        lock: threading.Condition,
        pipeline: Pipeline,
        on_step: Callable[[StepReport], None],
        monotonic: Callable[[], float],
        times: StepTimes | None,
        launches_ahead: bool,
        debug: bool,
    ) -> None:
        """Make no step yet.

        Args:
            scheduler: used under ``lock`` only.
            lives: likewise.
            lock: the engine's own.
            pipeline: nobody else may use it.
            on_step: called after every step, on the thread that made it.
            monotonic: seconds.
            times: is told what every step cost.
            launches_ahead: a pipeline that overlaps takes a step before the tokens of the one
                under way are known.
            debug: check the scheduler's books after every step.
        """
        self.closing = False
        self.on_step = on_step
        self._scheduler = scheduler
        self._lives = lives
        self._lock = lock
        self._pipeline = pipeline
        self._monotonic = monotonic
        self._times = times
        self._launches_ahead = launches_ahead and pipeline.overlaps
        self._debug = debug
        limits = scheduler.config
        self._builder = BatchBuilder(scheduler, limits.max_seqs, limits.max_model_len)
        self._landed: Landed | None = None
        self._steps = 0
        self._moved_at = monotonic()

    @property
    def under_way(self) -> bool:
        """Whether a step has been launched whose results have not been taken."""
        return len(self._pipeline) > 0

    def progress(self) -> Progress:
        """Whether the loop moves; to be asked with the lock held."""
        # A step that hangs has work, also when its requests have been aborted meanwhile.
        busy = len(self._lives) > 0 or self.under_way
        return Progress(self._steps, busy, self._monotonic() - self._moved_at)

    def wake(self) -> None:
        """Note that a request is about to come: an idle engine's time until now is no step's."""
        if not self._lives and not self.under_way:
            self._moved_at = self._monotonic()

    def step(self) -> StepResult:
        """Take the results of a step and report them; launch one first if none is under way.

        With overlap, the next step is under way when this returns, and what this one did is
        reported in the course of that. Who has nothing more to wait for has been told all.
        """
        if not self._pipeline:
            self._take_off(self._scheduler.schedule)
        if not self._pipeline:  # all was aborted or over before this step could plan it
            return StepResult({}, {}, awaited=False)
        ahead = self._pipeline.overlaps and self._look_ahead()
        result = self._land()
        if self._pipeline.overlaps and not self._pipeline and not self.closing:
            self._take_off(self._scheduler.resume if ahead else self._scheduler.schedule)
        if not self._pipeline:
            self.tell()
        return result

    def drain(self) -> None:
        """Take and report the results of what is under way, and launch nothing more."""
        self.closing = True
        while self.under_way:
            self.tell()
            self._land()
        self.tell()

    def tell(self) -> None:
        """Make text of the last step's tokens and report them, unless that has been done."""
        landed, self._landed = self._landed, None
        if landed is None:
            return
        landed.tell()
        known = self._lives.by_id
        with self._lock:
            told = zip(landed.ids, landed.deltas, strict=True)
            deltas = tuple([delta for id, delta in told if id in known])
            for id in landed.over:
                if id in known:
                    self._scheduler.abort(id)
                    self._lives.drop(id)
            report = StepReport(deltas, self._scheduler.stats())
        self.on_step(report)

    # ---- while a step is computed ---------------------------------------------------

    def _look_ahead(self) -> bool:
        """Do what need not wait for the tokens of the step under way.

        Returns:
            Whether the next step has been planned.
        """
        self.tell()
        flight = self._pipeline.first
        if flight.misled:  # some of its rows give no token after all
            return False
        if len(self._pipeline) == 1:  # not if this was interrupted before
            self._take_off(self._plan_ahead, flight.ending)
        return True

    def _plan_ahead(self) -> ScheduleOutput | None:
        """Plan the next step; return it if it can be launched now."""
        self._scheduler.schedule_ahead()
        if self.closing or not self._launches_ahead:
            return None
        plan, known = self._scheduler.launch_ahead(), self._lives.by_id
        if plan is None or any(known[id].row.needs_tokens for id in plan.decode):
            return None
        return plan

    # ---- from a plan to a step under way --------------------------------------------

    def _take_off(
        self, plan: Callable[[], ScheduleOutput | None], awaited: Sequence[int] = ()
    ) -> None:
        """Launch the step of a plan, if it has rows.

        Args:
            plan: makes it.
            awaited: the requests that the step under way gives a token, in row order.
        """
        with self._lock:
            expired = self._expire()
        try:
            with self._lock:
                flight = self._prepare(plan(), awaited)
            if flight is not None:
                self._pipeline.launch(flight)
        finally:  # nobody else knows of them any more
            if expired:
                with self._lock:
                    stats = self._scheduler.stats()
                self.on_step(StepReport(tuple(expired), stats))

    def _prepare(self, plan: ScheduleOutput | None, awaited: Sequence[int]) -> Flight | None:
        """Take from the scheduler what a step needs."""
        if plan is None or not (plan.prefill or plan.decode):
            return None
        known = self._lives.by_id
        tops = prompt_tops(known[chunk.id] for chunk in plan.prefill)
        batch = self._builder.prepare(plan, tops, awaited)
        flight = Flight.of(plan, batch, known, self._scheduler.take_copies())
        now = self._monotonic()
        for live in flight.starting():
            self._lives.start(live, now, self._scheduler.cached_tokens(live.id))
        return flight

    def _expire(self) -> list[Delta]:
        """Drop what was not started in time."""
        expired = self._lives.pop_expired(self._scheduler.now())
        for live in expired:
            self._scheduler.abort(live.id)
        return [Delta(live.key, error=EXPIRED) for live in expired]

    # ---- from its results to a report -----------------------------------------------

    def _land(self) -> StepResult:
        """Take a step's tokens; requests that were aborted meanwhile drop out."""
        flight, result = self._pipeline.wait()
        stops = flight.take(result)
        landed = Landed(flight.lives, result)
        known = self._lives.by_id
        with self._lock:
            result.awaited = any(id in known and id not in flight.misled for id in flight.ids)
            for id, reason in result.errors.items():
                if (live := known.get(id)) is not None:
                    self._scheduler.abort(id)
                    landed.fail(live, reason)
            for id, finish in self._scheduler.advance(result.tokens, stops).items():
                known[id].finish = finish
            if self._debug:
                check_invariants(self._scheduler)
            self._steps += 1
            self._moved(flight)
        self._landed = landed
        return result

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
