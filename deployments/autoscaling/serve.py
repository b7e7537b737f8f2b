"""ServePolicy: a Scaler in the place where Serve's controller asks how many replicas to run."""

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from deployments.autoscaling.demand import newest_demand
from deployments.autoscaling.scaler import Scaler, State

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingConfig, AutoscalingContext

    from deployments.config import ServeConfig

# Named by the package: Serve ships by value what is at or below the module that is named here,
# so its controller need not have the project installed.
_POLICY = "deployments.autoscaling:ServePolicy"
_STATE = "scaler"

# How often a replica relays what the router told it. There are environment variables of that
# name, but Serve 2.60 reads only this setting, although it calls it deprecated.
RELAY_S = 1.0
# Serve keeps this much of the past; a fifth of it is how often values are taken.
_LOOK_BACK_S = 5 * RELAY_S


class ServePolicy:
    """Serve's controller makes one for a deployment and calls it several times a second.

    It never raises: that would stop the controller's work for all deployments.

    Args:
        settings: the fields of a `Scaler`; Serve's own bounds replace its bounds.
    """

    def __init__(self, **settings: Any) -> None:
        self._scaler = Scaler(**settings)

    def __call__(self, ctx: "AutoscalingContext") -> tuple[int, dict[str, Any]]:
        """Return the replicas wanted, and the state that Serve keeps for the next call."""
        scaler = replace(
            self._scaler,
            min_replicas=ctx.capacity_adjusted_min_replicas,
            max_replicas=ctx.capacity_adjusted_max_replicas,
        )
        kept = ctx.policy_state.get(_STATE)
        wanted, state = scaler.decide(
            newest_demand(ctx.raw_metrics),
            ctx.target_num_replicas,
            time.time() if ctx.current_time is None else ctx.current_time,
            State(**kept) if kept else None,
        )
        return wanted, {_STATE: asdict(state)}


def autoscaling_config(config: "ServeConfig") -> "AutoscalingConfig":
    """Return what Serve is to be told about scaling the replicas.

    A deployment starts with the fewest replicas, but at least one, so that a model that does
    not load is noticed; a redeploy keeps the number there is, unless the fewest is 0.

    Raises:
        ValueError: the settings say that nothing scales.
    """
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    if config.autoscaling == "off":
        raise ValueError("autoscaling is off")
    scaler = Scaler(
        policy=config.autoscaling,
        target_utilization=config.target_utilization,
        target_wait_s=config.target_wait_s,
        target_ttft_s=config.target_ttft_s,
        min_replicas=config.min_replicas,
        max_replicas=config.max_replicas,
        scale_up_cooldown_s=config.scale_up_cooldown_s,
        scale_down_cooldown_s=config.scale_down_cooldown_s,
        scale_to_zero_s=config.scale_to_zero_s,
    )
    return AutoscalingConfig(
        min_replicas=config.min_replicas,
        max_replicas=config.max_replicas,
        # Serve goes back to it at every redeploy, however many replicas are at work.
        initial_replicas=None if config.min_replicas else 1,
        metrics_interval_s=RELAY_S,
        look_back_period_s=_LOOK_BACK_S,
        # The Scaler damps, and nobody else.
        upscale_delay_s=0.0,
        downscale_delay_s=0.0,
        downscale_to_zero_delay_s=0.0,
        upscaling_factor=1.0,
        downscaling_factor=1.0,
        policy=AutoscalingPolicy(policy_function=_POLICY, policy_kwargs=asdict(scaler)),
    )
