"""Prefill policies: how much of a prompt one step computes."""

from typing import Final, Protocol, runtime_checkable

from engine.plan import Plan, RequestState
from engine.request import is_int, require
from engine.step_times import StepTimes

LEAST_PACED: Final = 32
"""Prompt tokens that a step takes however slow it is: the weights are read anyway, so about as
many rows cost little, and whoever waits gets on."""
UNLIMITED: Final = 1 << 62
MOST_DOUBT: Final = 0.5
"""The share of the target that is kept free for what cannot be foreseen, at most."""


class PrefillPolicy(Protocol):
    """Decides the length of one request's next chunk. Has no side effects."""

    def chunk_len(self, remaining: int, budget: int, alone: bool) -> int:
        """Return how many tokens to compute now, 0 for none in this step.

        Args:
            remaining: tokens of the request whose K and V are not computed, >= 1.
            budget: tokens that this step may still take, >= 1.
            alone: nothing else is in this step so far.
        """
        ...


def granted(
    policy: PrefillPolicy, state: RequestState, plan: Plan, computed: int, kept: int = 0
) -> int:
    """Return how many tokens of a request, after the first ``computed``, a step may take.

    Args:
        policy: how prompts are cut.
        state: the request.
        plan: the step so far.
        computed: tokens whose K and V are there.
        kept: tokens of the step's budget that are not for this request.
    """
    budget = plan.budget - kept
    if budget <= 0:
        return 0
    return policy.chunk_len(len(state.tokens) - computed, budget, plan.empty)


class WholePrompt:
    """A prompt in one piece: it waits until it fits, or for a step of its own."""

    def chunk_len(self, remaining: int, budget: int, alone: bool) -> int:
        """Return ``remaining`` if it fits the budget or the step is empty, else 0."""
        return remaining if alone or remaining <= budget else 0


class Chunked:
    """A prompt in pieces, so that a long one cannot hold up everybody's next token."""

    def __init__(self, max_chunk: int) -> None:
        """Cut chunks of at most ``max_chunk`` tokens.

        Raises:
            InvalidParam: ``max_chunk`` is below 1, which could never make progress.
        """
        require(is_int(max_chunk, 1), "max_chunk", max_chunk, "an integer from 1")
        self.max_chunk = max_chunk

    def chunk_len(self, remaining: int, budget: int, alone: bool) -> int:
        """Return the least of ``remaining``, ``budget`` and ``max_chunk``."""
        return min(remaining, budget, self.max_chunk)


@runtime_checkable
class StepBudget(Protocol):
    """What a policy may have besides: a limit to all prompt tokens of a step together."""

    def step_budget(self, decodes: int) -> int:
        """Return how many prompt tokens a step with ``decodes`` decodes may take, >= 1.

        Has no side effects.
        """
        ...


class Paced:
    """Chunks that leave running requests a target time for each of their tokens.

    It asks what steps have cost (:class:`engine.step_times.StepTimes`) how many prompt
    tokens bring the next one to the target, less what predictions were off of late, and
    takes no more than that of all prompts together. So that a wrong guess costs little, a
    step has at most twice the prompt tokens of those before it.
    """

    def __init__(self, target_s: float, max_chunk: int, times: StepTimes) -> None:
        """Aim at steps of ``target_s`` seconds where there are decodes.

        Args:
            target_s: what one token of a running request should take, > 0.
            max_chunk: the longest chunk, >= 1.
            times: what steps cost; somebody has to tell it.

        Raises:
            InvalidParam: ``target_s`` or ``max_chunk`` is out of its range.
        """
        require(target_s > 0, "target_s", target_s, "more than 0 seconds")
        require(is_int(max_chunk, 1), "max_chunk", max_chunk, "an integer from 1")
        self.target_s = target_s
        self.max_chunk = max_chunk
        self._times = times

    def chunk_len(self, remaining: int, budget: int, alone: bool) -> int:
        """Return the least of ``remaining``, ``budget`` and ``max_chunk``."""
        return min(remaining, budget, self.max_chunk)

    def step_budget(self, decodes: int) -> int:
        """Return the prompt tokens that bring a step to the target, at least LEAST_PACED."""
        times = self._times
        if decodes == 0:  # nobody waits for a token
            return UNLIMITED
        if not times.prompts.known:
            return LEAST_PACED
        aim = self.target_s * (1.0 - min(MOST_DOUBT, times.spread))
        tokens = times.prompts.reaches(aim - times.decodes.at(decodes))
        return int(max(LEAST_PACED, min(tokens, 2 * times.reach)))
