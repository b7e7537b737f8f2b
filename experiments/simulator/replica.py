"""SimulatedReplica: a scheduler whose steps take time, and what its replica tells the router."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from deployments.messages import Refusal, Vitals, refuse
from deployments.news import Figures, News, figures_of
from deployments.prefix_news import PrefixNews
from engine.engine_config import EngineConfig
from engine.plan import ScheduleOutput
from engine.prefix_cache import BlockManager
from engine.request import AdmitError, InvalidParam, Request
from engine.step_times import StepTimes
from experiments.simulator.errand import Errand
from experiments.simulator.reporter import SimulatedReporter
from experiments.simulator.scenario import KIND, Scenario
from experiments.simulator.schedulers import scheduler_of
from experiments.simulator.step_time import StepTime
from experiments.simulator.stretches import Stretches
from experiments.simulator.texts import Texts
from experiments.simulator.timeline import Timeline
from router.report import Report

if TYPE_CHECKING:
    from deployments.autoscaling import Demand
    from experiments.simulator.router import SimulatedRouter

_EMPTY_PLANS = 1_000
"""So many plans in a row that compute nothing, although there is work, are a bug."""

_WELL = Vitals(True, 0, 0)


class SimulatedReplica:
    """One replica from its start to its end.

    What is real: the scheduler and its memory, and when a report is due. What is not: a step
    takes as long as a model of it says, and requests end when their length says so.

    Attributes:
        name: unique in the run.
        serial: how many there were before it.
        ordered_at: when it was ordered.
        ready: it serves, or has.
        alive: its process runs; once False, False for ever.
        heard: what it sends arrives.
        leaving: it takes nothing new.
        scheduler: the engine's.
        busy_s: seconds in which it computed.
        reporter: tells the router how it is.
        demand: what the router last told it that the autoscaler is to know.
    """

    def __init__(
        self,
        serial: int,
        scenario: Scenario,
        engine: EngineConfig,
        step_time: StepTime,
        timeline: Timeline,
        texts: Texts,
        finished: Callable[[Errand], None],
        started: Callable[[Errand, float], None],
        crowd: Callable[[], float] | None,
    ) -> None:
        """Order a replica.

        Args:
            serial: how many there were before it.
            scenario: what it runs in.
            engine: its limits.
            step_time: how long its steps take.
            timeline: the time.
            texts: the tokens of prompts.
            finished: called with each request that has got its last token.
            started: called with each request that has got the first token of its answer, and when.
            crowd: says how many times as long a step takes that begins now; None: it never does.
        """
        self.name = f"r{serial}"
        self.serial = serial
        self.ordered_at = timeline.now
        self.ready = False
        self.alive = True
        self.heard = True
        self.leaving = False
        self.busy_s = 0.0
        self.demand: Demand | None = None
        self._timeline = timeline
        self._network_s = scenario.network_s
        self._step_time = step_time
        self._texts = texts
        self._finished = finished
        self._started = started
        self._crowd = crowd
        self._engine = engine
        self._overlap = engine.overlap
        self._times = StepTimes()
        self.scheduler = scheduler_of(scenario, engine, step_time, self._times, timeline)
        self._swap = self.scheduler.swap
        self._learns = engine.target_tpot_ms is not None or self._swap is not None
        config = scenario.config
        cache = PrefixNews(self) if config.by_prefix else None
        self._news = News(self.name, KIND, config.report_interval_s, config.heartbeat_s, cache)
        self.reporter = SimulatedReporter(self._news, self._figures, timeline)
        self.errands: dict[int, Errand] = {}
        self._ids: dict[str, int] = {}
        self._keys: dict[int, str] = {}
        self.stretches = Stretches()
        self._plan: ScheduleOutput | None = None
        self._began_at = 0.0
        self._moved_at = 0.0
        self._copied = False
        self._router: SimulatedRouter | None = None
        self._when_empty: Callable[[SimulatedReplica], None] | None = None

    @property
    def computing(self) -> bool:
        """Whether a step is under way."""
        return self._plan is not None

    # ---- requests ---------------------------------------------------------------------

    def take(self, errand: Errand) -> Refusal | None:
        """Take a request, as `deployments.replica.Replica.submit` does; None means taken."""
        ticket, arrival = errand.ticket, errand.arrival
        assert ticket is not None
        request = Request(
            prompt=self._texts.prompt(errand.outcome.index, arrival),
            max_tokens=arrival.output_tokens,
            priority=arrival.priority,
            arrival=ticket.arrival,
            generated=[0] * errand.generated,
            salt=self._texts.salt(arrival),
        )
        try:
            id = self.scheduler.add(request)
        except (AdmitError, InvalidParam) as error:
            return refuse(error)
        self.errands[id] = errand
        self._ids[ticket.id] = id
        self._keys[id] = ticket.id
        if self._plan is None:
            self._moved_at = self._timeline.now
            self._step()
        self.reporter.admitted(ticket.id)
        return None

    def drop(self, key: str) -> None:
        """Abort a request; unknown ones are fine."""
        id = self._ids.pop(key, None)
        if id is None:
            return
        self.stretches.end(self.errands.pop(id))
        del self._keys[id]
        self.scheduler.abort(id)
        self.reporter.ended(key)
        self.reporter.moved(room=True)
        self._look_if_empty()

    def when_empty(self, action: "Callable[[SimulatedReplica], None]") -> None:
        """Call ``action`` with this as soon as it has no request."""
        self._when_empty = action
        self._look_if_empty()

    def _look_if_empty(self) -> None:
        if self._when_empty is not None and not self.errands:
            self._timeline.after(0.0, self._when_empty, self)

    def hand_over(self) -> list[Errand]:
        """Return all that it has, with the tokens so far; it has nothing any more."""
        errands = list(self.errands.values())
        self.stretches.end_all(errands)
        for id in self.errands:
            self.scheduler.abort(id)
        self.errands.clear()
        self._ids.clear()
        self._keys.clear()
        return errands

    def _over(self, id: int) -> Errand:
        errand = self.errands.pop(id)
        key = self._keys.pop(id)
        del self._ids[key]
        self.stretches.end(errand)
        self.reporter.ended(key)
        return errand

    # ---- steps ------------------------------------------------------------------------

    def _step(self) -> None:
        """Begin a step, if there is anything to do."""
        self._plan = None
        for _ in range(_EMPTY_PLANS):
            if not self.scheduler.has_unfinished():
                return
            plan = self.scheduler.schedule()
            if self._launched(plan):
                return
        raise RuntimeError(f"replica {self.name} has work and plans nothing: a bug")

    def _launched(self, plan: ScheduleOutput) -> bool:
        """Begin the step of a plan; False if it computes nothing."""
        for id in plan.preempted:
            self.stretches.end(self.errands[id])
        if not (plan.prefill or plan.decode):
            return False
        seconds = self._seconds(plan)
        if self._crowd is not None:
            seconds *= self._crowd()
        timeline = self._timeline
        self._plan = plan
        self._began_at = timeline.now
        timeline.at(timeline.now + seconds, self._end)
        if self._overlap:
            self.scheduler.schedule_ahead()
        return True

    def _seconds(self, plan: ScheduleOutput) -> float:
        """How long the step of a plan takes, with the copies that go before it."""
        prefill = pairs = 0
        decodes, stretches = len(plan.decode), self.stretches
        if decodes != stretches.count:
            # The budget was too small for all of them.
            chosen = set(plan.decode)
            stretches.end_all([one for id, one in self.errands.items() if id not in chosen])
            context = sum(stretches.length(self.errands[id]) for id in plan.decode)
        else:
            context = stretches.context
        for chunk in plan.prefill:
            length = chunk.len
            if length == 1:  # costs what a decode does, see `ScheduleOutput.work`
                decodes += 1
                context += chunk.start + 1
            else:
                prefill += length
                pairs += length * chunk.start + length * (length + 1) // 2
        seconds = self._step_time.seconds(prefill, pairs, decodes, context)
        if self._swap is not None:
            copies = self.scheduler.take_copies()
            self._copied = bool(copies)
            if copies:
                seconds += self._step_time.copies(sum(len(copy.blocks) for copy in copies))
        return seconds

    def _end(self, _: None) -> None:
        """Take the results of the step under way, and begin the next one."""
        plan = self._plan
        if plan is None:  # it has stopped meanwhile
            return
        now = self._timeline.now
        self.busy_s += now - self._began_at
        over = self._take(plan, now)
        if self._learns and not self._copied:
            self._times.observe(*plan.work, now - self._moved_at)
        self._moved_at = now
        if self._overlap:
            self._plan = None
            if not self._launched(self.scheduler.resume()):
                self._step()
        else:
            self._step()
        for errand in over:
            self._finished(errand)
        self.reporter.moved(room=bool(over))
        self._look_if_empty()

    def _take(self, plan: ScheduleOutput, now: float) -> list[Errand]:
        """Take the tokens of a step; return those that have all of theirs."""
        rows, known, stretches = plan.decode, self.errands, self.stretches
        sampled: list[int] = []
        if plan.prefill:
            sampled = [chunk.id for chunk in plan.prefill if chunk.last]
            rows = sampled + rows
            for id in sampled:
                if id in known and known[id].outcome.first_token_at is None:
                    known[id].outcome.cached_tokens = self.scheduler.cached_tokens(id)
        ended = self.scheduler.advance(dict.fromkeys(rows, 0), ())
        stretches.stepped(now)
        if stretches.count < len(plan.decode):  # some of them had to pause before this step
            sampled += [id for id in plan.decode if id in known and known[id].since < 0]
        for id in sampled:
            if (errand := known.get(id)) is not None:
                if errand.outcome.first_token_at is None:
                    self._started(errand, now)
                stretches.begin(errand, now)
        return [self._over(id) for id in ended] if ended else []

    # ---- reports ----------------------------------------------------------------------

    def serve(self, router: "SimulatedRouter") -> None:
        """Begin to report."""
        self.ready = True
        self._router = router
        self.reporter.begin(self)

    def hear(self, report: Report) -> None:
        """Send a report."""
        if self._router is not None:
            self._router.send_report(self, report)

    def leave(self) -> None:
        """Take nothing new from now on, and say so."""
        self.leaving = True
        self.reporter.moved()

    def _figures(self) -> Figures:
        return figures_of(
            self.scheduler.stats(),
            max_seqs=self._engine.max_num_seqs,
            max_waiting=self._engine.max_waiting,
            leaving=self.leaving,
            held=tuple(self._ids) if self._news.full else (),
            ending=(),
            vitals=_WELL,
        )

    def prefix_events(self) -> tuple[list[int], list[int]]:
        """See `deployments.prefix_news.PrefixCache`."""
        blocks = self.scheduler.blocks
        return blocks.take_events() if isinstance(blocks, BlockManager) else ([], [])

    def held_prefixes(self, most: int) -> list[int]:
        """See `deployments.prefix_news.PrefixCache`."""
        blocks = self.scheduler.blocks
        return blocks.held_prefixes(most) if isinstance(blocks, BlockManager) else []

    # ---- the end ----------------------------------------------------------------------

    def fall_silent(self) -> None:
        """Its machine is gone, and nobody notices."""
        self.heard = False
        self._stop()

    def die(self) -> None:
        """Its process ends."""
        self.alive = self.heard = False
        self._stop()

    def _stop(self) -> None:
        if self._plan is not None:
            self.busy_s += self._timeline.now - self._began_at
            self._plan = None
        self._router = None
        self.reporter.stop()
