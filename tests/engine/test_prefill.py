import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.prefill import LEAST_PACED, Chunked, Paced, PrefillPolicy, StepBudget, WholePrompt
from engine.request import InvalidParam
from engine.step_times import StepTimes
from tests.engine.fake_model import FakeModel, answer, make_scheduler

positive = st.integers(1, 50)
LONGEST = 4096


@pytest.mark.parametrize(
    ("remaining", "budget", "alone", "length"),
    [(5, 8, False, 5), (8, 8, False, 8), (9, 8, False, 0), (9, 8, True, 9), (1, 1, True, 1)],
)
def test_a_whole_prompt_is_never_cut(remaining: int, budget: int, alone: bool, length: int) -> None:
    """Fault: a prompt that is longer than the budget is cut, or waits for ever."""
    assert WholePrompt().chunk_len(remaining, budget, alone) == length


@pytest.mark.parametrize(
    ("remaining", "budget", "length"), [(5, 8, 4), (3, 8, 3), (9, 2, 2), (4, 4, 4)]
)
def test_a_chunk_keeps_to_all_three_limits(remaining: int, budget: int, length: int) -> None:
    """Fault: a chunk exceeds what is left, the budget, or the largest chunk."""
    assert Chunked(4).chunk_len(remaining, budget, alone=True) == length
    assert Chunked(4).chunk_len(remaining, budget, alone=False) == length


@settings(max_examples=80, deadline=None)
@given(positive, positive, st.integers(1, 20))
def test_every_prompt_gets_done(remaining: int, budget: int, largest: int) -> None:
    """Fault: some prompt is granted nothing in a step of its own: a silent hang."""
    paced = Paced(0.05, largest, StepTimes())
    policies: list[PrefillPolicy] = [WholePrompt(), Chunked(largest), paced]
    for policy in policies:
        assert 1 <= policy.chunk_len(remaining, budget, alone=True) <= remaining
        assert 0 <= policy.chunk_len(remaining, budget, alone=False) <= min(remaining, budget)


@pytest.mark.parametrize("largest", [0, -1, 1.5, True])
def test_a_chunk_that_makes_no_progress_is_refused(largest: int) -> None:
    """Fault: chunks of nothing are planned for ever."""
    with pytest.raises(InvalidParam, match="max_chunk"):
        Chunked(largest)


# ---- at a pace ----------------------------------------------------------------------------


@dataclass
class Machine:
    """Seconds that its steps take: fixed, for each decode, each prompt token, each with prompts."""

    fixed: float
    decode: float
    token: float
    extra: float
    noise: float = 0.0

    def step(self, tokens: int, decodes: int, rng: random.Random) -> float:
        seconds = self.fixed + self.decode * decodes + self.token * tokens
        if tokens:
            seconds += self.extra
        return seconds * (1 + self.noise * rng.uniform(-1, 1))

    def due(self, tokens: int, target: float, decodes: int) -> tuple[float, float]:
        """Seconds of a step without noise, and what they should be: the target if it can be."""
        quiet = replace(self, noise=0.0)
        took, least, most = (
            quiet.step(count, decodes, random.Random(0)) for count in (tokens, LEAST_PACED, LONGEST)
        )
        return took, min(max(target, least), most)


machines = st.builds(
    Machine,
    fixed=st.floats(0.001, 0.03),
    decode=st.floats(1e-6, 1e-3),
    token=st.floats(1e-5, 1e-3),
    extra=st.floats(0.0, 0.02),
)


def play(machine: Machine, target: float, decodes: int, steps: int, times: StepTimes) -> list[int]:
    """Compute prompts without end beside decodes, with a step without prompts in between."""
    rng = random.Random(0)
    policy = Paced(target, LONGEST, times)
    taken = []
    for i in range(steps):
        if i % 3 == 0:
            times.observe(0, decodes, machine.step(0, decodes, rng))
        tokens = policy.chunk_len(100_000, policy.step_budget(decodes), False)
        assert tokens >= LEAST_PACED
        taken.append(tokens)
        times.observe(tokens, decodes, machine.step(tokens, decodes, rng))
    return taken


@settings(max_examples=150, deadline=None)
@given(machines, st.floats(0.02, 0.2), st.integers(1, 100))
def test_steps_come_to_the_target_on_any_machine(
    machine: Machine, target: float, decodes: int
) -> None:
    """Fault: running requests see longer gaps than asked for, or prompts wait for no reason."""
    taken = play(machine, target, decodes, 40, StepTimes())
    came_to, due = machine.due(taken[-1], target, decodes)
    assert 0.95 * due <= came_to <= 1.02 * due
    for tokens in taken:  # on its way there it never goes far beyond
        assert machine.due(tokens, target, decodes)[0] <= 1.05 * due


@settings(max_examples=60, deadline=None)
@given(machines, st.floats(0.02, 0.2), st.integers(1, 100), st.sampled_from([0.3, 0.5, 2.0, 4.0]))
def test_a_machine_that_changes_is_followed(
    machine: Machine, target: float, decodes: int, factor: float
) -> None:
    """Fault: what was learned once holds for ever, when sequences and neighbours grow."""
    times = StepTimes()
    play(machine, target, decodes, 40, times)
    costs = (machine.fixed, machine.decode, machine.token, machine.extra)
    changed = Machine(*(cost * factor for cost in costs))
    taken = play(changed, target, decodes, 120, times)
    came_to, due = changed.due(taken[-1], target, decodes)
    assert 0.95 * due <= came_to <= 1.05 * due


@settings(max_examples=40, deadline=None)
@given(machines, st.integers(1, 100))
def test_most_steps_of_a_noisy_machine_keep_to_the_target(machine: Machine, decodes: int) -> None:
    """Fault: it aims at the middle, so that every other step is too long."""
    machine.noise = 0.2
    target = 2.0 * machine.step(LEAST_PACED, decodes, random.Random(0))
    taken = play(machine, target, decodes, 120, StepTimes())
    rng = random.Random(1)
    late = [machine.step(tokens, decodes, rng) > target for tokens in taken[40:]]
    assert sum(late) <= 0.3 * len(late)


def test_what_few_tokens_cost_is_not_believed_of_many() -> None:
    """Fault: tokens that came free with the weights promise a step without end."""
    times = StepTimes()
    for _ in range(20):
        times.observe(0, 8, 0.020)
        times.observe(40, 8, 0.0201)
    assert Paced(0.1, 4096, times).step_budget(8) == 80


def test_without_decodes_there_is_nothing_to_keep_up() -> None:
    """Fault: an idle replica computes a prompt in crumbs."""
    policy = Paced(0.001, 512, StepTimes())
    assert policy.chunk_len(2000, min(2048, policy.step_budget(0)), True) == 512


def test_a_target_below_the_decodes_alone_still_lets_prompts_on() -> None:
    """Fault: a target that cannot be kept makes prompts wait for ever."""
    times = StepTimes()
    play(Machine(0.5, 0.01, 0.001, 0.0), 0.02, 8, 30, times)
    assert Paced(0.02, 512, times).step_budget(8) == LEAST_PACED


@pytest.mark.parametrize(("target", "largest"), [(0.0, 8), (-1.0, 8), (0.1, 0), (0.1, True)])
def test_a_pace_that_is_none_is_refused(target: float, largest: int) -> None:
    with pytest.raises(InvalidParam, match=r"target_s|max_chunk"):
        Paced(target, largest, StepTimes())


class FewTokens(Chunked):
    """Lets all prompts of a step have ten tokens together."""

    def step_budget(self, decodes: int) -> int:
        assert decodes >= 0
        return 10


def test_a_step_takes_no_more_of_all_prompts_together() -> None:
    """Fault: each of many prompts gets a whole chunk, and the step takes many times as long."""
    policy = FewTokens(8)
    assert isinstance(policy, StepBudget)
    assert not isinstance(Chunked(8), StepBudget)
    model = FakeModel(make_scheduler(prefill=policy))
    ids = [model.add([i] * 12, 6) for i in range(4)]
    model.step()
    assert [chunk.len for chunk in model.plans[0].prefill] == [8, 2]
    model.run()
    for id in ids:
        assert model.generated[id] == answer(*model.asked[id])
    for plan in model.plans:
        assert sum(chunk.len for chunk in plan.prefill) <= 10
    assert any(len(plan.decode) >= 2 and plan.prefill for plan in model.plans)
