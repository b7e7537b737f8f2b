"""Scaler: when the number of replicas changes, whatever the policy."""

from dataclasses import dataclass, replace
from typing import Final, Literal

from deployments.autoscaling import policies
from deployments.autoscaling.demand import Demand
from deployments.autoscaling.policies import Band, Policy

STALE_S: Final = 15.0
"""What has not been heard anew for so long is no reason to change anything."""


@dataclass(frozen=True, slots=True)
class State:
    """What a scaler remembers; plain values, so that it travels as a dict.

    Attributes:
        target: replicas that there were meant to be, when last asked.
        changed_at: when that became so.
        quiet_since: since when fewer would have done, without a break; None: they would not.
        peak: the most that was needed since then.
        heard: the `Demand.at` of the newest demand.
        heard_at: when it was first seen.
    """

    target: int
    changed_at: float
    quiet_since: float | None = None
    peak: int = 0
    heard: float | None = None
    heard_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Scaler:
    """Decides how many replicas there should be. Times in seconds.

    A rise is made as soon as it is wanted, a fall once it has been wanted without a break for
    the whole of its cool-down, and then only to the most that was needed in that time: noise
    around a threshold moves the fleet up once and leaves it there. Both wait for their
    cool-down after any change, whoever made it. From 0 it rises at once.

    Attributes:
        policy: which of `policies` is asked, or one of the operator's own.
        min_replicas, max_replicas: the bounds, always kept. With a minimum of 0 the last
            replica goes after ``scale_to_zero_s`` without any request, from 1 and not from
            more.
    """

    policy: Literal["blocks", "wait", "ttft"] | Policy
    target_utilization: float
    target_wait_s: float
    target_ttft_s: float
    min_replicas: int
    max_replicas: int
    scale_up_cooldown_s: float
    scale_down_cooldown_s: float
    scale_to_zero_s: float

    def decide(
        self, demand: Demand | None, target: int, now: float, state: State | None
    ) -> tuple[int, State]:
        """Return how many replicas there should be, and what to remember.

        Whatever an operator's own policy raises comes out of here.

        Args:
            demand: the newest that is known; None if nothing is, which changes nothing.
            target: replicas that there are meant to be now, those that start included.
            now: the caller's clock; only differences count.
            state: what was returned before; None at first, which counts as a change.
        """
        state = _observe(state, demand, target, now)
        if demand is None or now - state.heard_at > STALE_S:
            return self._bounded(target), replace(state, quiet_since=None)
        band = self.band(demand, target)
        since_change = now - state.changed_at
        if band.least > target:
            rises = target == 0 or since_change >= self.scale_up_cooldown_s
            wanted = self._bounded(band.least if rises else target)
            return wanted, replace(state, quiet_since=None)
        most = max(band.most, self._lowest(demand, target))
        if most >= target:
            return self._bounded(target), replace(state, quiet_since=None)
        if (quiet_since := state.quiet_since) is None:
            # While there was no request at all, fewer would have done, seen or not.
            quiet_since = now - demand.idle_s
            state = replace(state, quiet_since=quiet_since, peak=most)
        state = replace(state, peak=max(state.peak, most))
        falls = min(since_change, now - quiet_since) >= self.scale_down_cooldown_s
        return self._bounded(state.peak if falls else target), state

    def band(self, demand: Demand, target: int) -> Band:
        """Ask the policy."""
        if not isinstance(self.policy, str):
            return self.policy(demand, target, self)
        match self.policy:
            case "blocks":
                return policies.blocks(demand, target, self.target_utilization)
            case "wait":
                return policies.wait(demand, target, self.target_wait_s, self.target_utilization)
            case "ttft":
                return policies.ttft(demand, target, self.target_ttft_s, self.target_utilization)

    def _lowest(self, demand: Demand, target: int) -> int:
        if target == 1 and demand.idle_s >= self.scale_to_zero_s:
            return self.min_replicas
        return max(1, self.min_replicas)

    def _bounded(self, replicas: int) -> int:
        return min(max(replicas, self.min_replicas), self.max_replicas)


def _observe(state: State | None, demand: Demand | None, target: int, now: float) -> State:
    """Note a change of the target, and when a demand was first seen."""
    if state is None or state.target != target:
        heard, heard_at = (None, now) if state is None else (state.heard, state.heard_at)
        state = State(target, changed_at=now, heard=heard, heard_at=heard_at)
    # A clock that is set back must not stretch a cool-down by as much.
    state = replace(
        state,
        changed_at=min(state.changed_at, now),
        heard_at=min(state.heard_at, now),
        quiet_since=None if state.quiet_since is None else min(state.quiet_since, now),
    )
    if demand is not None and demand.at != state.heard:
        state = replace(state, heard=demand.at, heard_at=now)
    return state
