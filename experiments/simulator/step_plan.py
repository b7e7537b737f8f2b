"""Which steps are made to find out what a step costs: of all sizes, alone and mixed."""

import random
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from experiments.simulator.measured_step import MeasuredStep
from experiments.simulator.step_rig import StepRig

Episode: TypeAlias = list[MeasuredStep]
"""Steps of one level of decodes, from the first prompt to the last mixed step."""

QUIET_STEPS: Final = 10
"""Steps in which nothing but decodes happens, in a row."""
PROMPTS: Final = 2
"""Prompts that come, one after the other, while others decode."""
EPISODE_S: Final = 3.0
"""Seconds that an episode's first prompts take at most, about."""
LEAST_TOKENS: Final = 1024
"""Tokens of an episode's first prompts that are always allowed, however slow the machine is."""


def measure(
    rig: StepRig, seconds: float, seed: int, clock: Callable[[], float] = time.monotonic
) -> list[Episode]:
    """Drive an engine for about so many seconds, and each level of decodes at least once.

    Levels are the powers of two up to ``max_num_seqs``, and 0. In every round each has its turn
    in a new order, so that what the machine does meanwhile falls on all alike.

    Args:
        rig: the engine.
        seconds: how long to go on.
        seed: of lengths and orders.
        clock: seconds.
    """
    rng = random.Random(seed)
    most = rig.config.max_num_seqs
    levels = [0, *(1 << i for i in range(most.bit_length())), most]
    levels = sorted(set(levels))
    tokens_s = _warm_up(rig, levels)
    end = clock() + seconds
    episodes: list[Episode] = []
    while True:
        for level in rng.sample(levels, len(levels)):
            if clock() >= end and len(episodes) >= len(levels):
                return episodes
            room = max(LEAST_TOKENS, int(tokens_s * EPISODE_S))
            episodes.append(_episode(rig, level, room, rng))


def _warm_up(rig: StepRig, levels: list[int]) -> float:
    """Let every size of batch run once, unmeasured; return prompt tokens per second."""
    longest = _longest(rig)
    made: Episode = []
    for level in levels:
        _fill(rig, [min(8, longest)] * level, made)
        rig.drop_all()
    chunk = min(rig.config.prefill_chunk or rig.config.max_batch_tokens, longest)
    for _ in range(2):
        prompts: Episode = []
        _fill(rig, [chunk], prompts)
        rig.drop_all()
    return sum(step.prefill for step in prompts) / sum(step.seconds for step in prompts)


def _episode(rig: StepRig, level: int, room: int, rng: random.Random) -> Episode:
    made: Episode = []
    if level:
        longest = min(_longest(rig), _pool(rig) // (2 * level), max(4, room // level))
        length = int(_spread(rng, min(16, longest), longest))
        lengths = [max(1, int(length * rng.uniform(0.5, 1.0))) for _ in range(level)]
        _fill(rig, lengths, made)
        _steps(rig, QUIET_STEPS, made)
    for _ in range(PROMPTS):
        if rig.unfinished == rig.config.max_num_seqs:
            break
        before, longest = rig.unfinished, min(_longest(rig), _pool(rig) // 2, room)
        rig.submit(int(_spread(rng, 1, longest)), 1)
        while rig.unfinished > before:
            made.append(rig.step())
        _steps(rig, min(2, rig.unfinished), made)
    rig.drop_all()
    return made


def _fill(rig: StepRig, lengths: list[int], made: Episode) -> None:
    """Make prompts of these lengths decode."""
    for length in lengths:
        rig.submit(length, _answer(rig))
    while lengths and (not made or made[-1].decodes < len(lengths)):
        made.append(rig.step())


def _steps(rig: StepRig, count: int, made: Episode) -> None:
    made += [rig.step() for _ in range(count) if rig.unfinished]


def _answer(rig: StepRig) -> int:
    """Tokens of an answer, so that none ends before its episode does, if there is room."""
    return max(1, rig.info.max_model_len // 2)


def _longest(rig: StepRig) -> int:
    """Tokens of the longest prompt that leaves room for its answer."""
    return max(1, rig.info.max_model_len // 2 - 1)


def _pool(rig: StepRig) -> int:
    return rig.info.total_blocks * rig.info.block_tokens


def _spread(rng: random.Random, low: float, high: float) -> float:
    """Draw a number whose logarithm is uniform."""
    return float(low * (high / low) ** rng.random())
