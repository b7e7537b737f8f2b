"""A real engine that is driven step by step, and what each of its steps computed and took."""

import random
import time
from collections.abc import Callable
from dataclasses import replace

from engine.build import build_engine
from engine.engine_config import EngineConfig
from engine.plan import ScheduleOutput
from engine.rank import SchedPolicy
from engine.request import Request, SamplingParams, StepOutput
from engine.scheduler import Scheduler
from engine.step_times import StepTimes
from engine.submission import StepReport, Submission
from experiments.simulator.measured_step import MeasuredStep


class StepRig:
    """An engine, and beside it a scheduler that plans the same steps for nobody.

    The engine tells no one what a step is made of, and the server has no use for it. But
    plans follow from what was submitted, so the second scheduler knows it too; that both
    agree on who gets a token is checked after every step.
    """

    def __init__(
        self, config: EngineConfig, seed: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Load the model.

        Args:
            config: what to build. Its cache is off, first come is first served and nobody makes
                way or is swapped, so that a step has no more in it than it is counted as.
            seed: of the prompts' tokens.
            clock: seconds.

        Raises:
            ModelError, InvalidParam, NotInvariant, Variance: as `build_engine`.
        """
        config = replace(
            config,
            prefix_cache=False,
            policy=SchedPolicy.FCFS,
            admission_preemption=0,
            max_passes=0,
            max_waiting=1 << 31,
            swap_gib=0.0,
            target_tpot_ms=None,
            overlap=False,
        )
        self.config = config
        self._reports: list[StepReport] = []
        self._engine, self.info = build_engine(config, self._reports.append, _no_time)
        self._shadow = Scheduler(
            config.scheduler(self.info.max_model_len),
            config.blocks(self.info.total_blocks),
            config.prefill_policy(StepTimes()),
            _no_time,
        )
        self._rng = random.Random(seed)
        self._clock = clock
        self._keys: dict[int, str] = {}
        self._made = 0

    @property
    def unfinished(self) -> int:
        """Requests that have not ended."""
        return len(self._keys)

    def submit(self, prompt: int, output: int) -> None:
        """Queue a request of so many random tokens, whose answer has exactly ``output``."""
        vocab = self.info.model.vocab_size
        ids = self._rng.choices(range(min(100, vocab - 1), vocab), k=prompt)
        self._made += 1
        key = str(self._made)
        params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
        self._engine.submit(Submission(key, tuple(ids), params))
        self._keys[self._shadow.add(Request(prompt=ids, max_tokens=output))] = key

    def step(self) -> MeasuredStep:
        """Make one step; there has to be an unfinished request."""
        plan = self._shadow.schedule()
        prefill, pairs, decodes, context = self._work(plan)
        begin = self._clock()
        self._engine.step()
        seconds = self._clock() - begin
        self._agree(plan)
        return MeasuredStep(prefill, pairs, decodes, context, seconds)

    def drop_all(self) -> None:
        """Leave the engine without requests."""
        for id, key in self._keys.items():
            self._engine.abort(key)
            self._shadow.abort(id)
        self._keys.clear()

    def _work(self, plan: ScheduleOutput) -> tuple[int, int, int, int]:
        """Count a plan as the simulator does: a chunk of one token costs what a decode does."""
        chunks = [chunk for chunk in plan.prefill if chunk.len > 1]
        single = [chunk.start + 1 for chunk in plan.prefill if chunk.len == 1]
        prefill = sum(chunk.len for chunk in chunks)
        pairs = sum(chunk.len * chunk.start + chunk.len * (chunk.len + 1) // 2 for chunk in chunks)
        context = sum(len(self._shadow.tokens(id)) for id in plan.decode) + sum(single)
        return prefill, pairs, len(plan.decode) + len(single), context

    def _agree(self, plan: ScheduleOutput) -> None:
        """Let the second scheduler take the step's tokens, which it needs not know."""
        rows = [chunk.id for chunk in plan.prefill if chunk.last] + plan.decode
        expected = {self._keys[id] for id in rows}
        told = {delta.key: delta for report in self._reports for delta in report.deltas}
        self._reports.clear()
        if told.keys() != expected or any(delta.error for delta in told.values()):
            raise RuntimeError(f"the engine served {sorted(told)}, not {sorted(expected)}")
        self._shadow.on_step([StepOutput(id, 0) for id in rows])
        for id in rows:
            if told[self._keys[id]].finish is not None:
                del self._keys[id]


def _no_time() -> int:
    """All arrive at once, so the order of ids decides."""
    return 0
