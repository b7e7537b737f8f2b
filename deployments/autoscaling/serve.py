"""ServePolicy: a Scaler in the place where Serve's controller asks how many replicas to run."""

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from deployments.autoscaling.demand import Demand, newest_demand
from deployments.autoscaling.own import own_policy
from deployments.autoscaling.policies import Band, Settings
from deployments.autoscaling.scaler import Scaler, State
from deployments.autoscaling.source import PolicyError, Source

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingConfig, AutoscalingContext

    from deployments.config import ServeConfig

# Named by the package: Serve ships by value what is at or below the module that is named here,
# so its controller need not have the project installed.
_POLICY = "deployments.autoscaling:ServePolicy"
_STATE = "scaler"
_LOGGER = "ray.serve"  # what the controller logs


# How often a replica relays what the router told it. There are environment variables of that
# name, but Serve 2.60 reads only this setting, although it calls it deprecated.
RELAY_S = 1.0
# Serve keeps this much of the past; a fifth of it is how often values are taken.
_LOOK_BACK_S = 5 * RELAY_S


class ServePolicy:
    """Serve's controller makes one for a deployment and calls it several times a second.

    It never raises: that would stop the controller's work for all deployments. What an operator's
    own policy raises is logged, and changes nothing.

    Args:
        settings: as from `settings_of`; Serve's own bounds replace those in it.
    """

    def __init__(self, **settings: Any) -> None:
        self._failures = 0
        try:
            self._scaler = scaler_of(settings)
        except PolicyError as error:
            self._scaler = replace(scaler_of({**settings, "policy": "blocks"}), policy=_No(error))

    def __call__(self, ctx: "AutoscalingContext") -> tuple[int, dict[str, Any]]:
        """Return the replicas wanted, and the state that Serve keeps for the next call."""
        scaler = replace(
            self._scaler,
            min_replicas=ctx.capacity_adjusted_min_replicas,
            max_replicas=ctx.capacity_adjusted_max_replicas,
        )
        kept = ctx.policy_state.get(_STATE)
        demand, before = newest_demand(ctx.raw_metrics), State(**kept) if kept else None
        now = time.time() if ctx.current_time is None else ctx.current_time
        try:
            wanted, state = scaler.decide(demand, ctx.target_num_replicas, now, before)
        except (Exception, SystemExit) as error:
            self._failed(error)
            # As when nothing is known: nothing changes, and the bounds hold.
            wanted, state = scaler.decide(None, ctx.target_num_replicas, now, before)
        return wanted, {_STATE: asdict(state)}

    def _failed(self, error: BaseException) -> None:
        self._failures += 1
        if self._failures & (self._failures - 1) == 0:  # the first, second, fourth, ... of them
            logging.getLogger(_LOGGER).error(
                "The autoscaling policy failed, %d times so far; the number of replicas stays.",
                self._failures,
                exc_info=error,
            )


class _No:
    """In place of a policy that could be made where it was deployed and cannot be made here."""

    def __init__(self, error: PolicyError) -> None:
        self._error = error

    def __call__(self, demand: Demand, target: int, settings: Settings) -> Band:
        raise self._error


def settings_of(config: "ServeConfig") -> dict[str, Any]:
    """Return what `scaler_of` makes a scaler of, as plain data.

    Raises:
        ValueError: the settings say that nothing scales; or (ConfigError) the operator's own policy
            cannot be read or made.
    """
    from deployments.policy_source import with_policies

    if config.autoscaling == "off":
        raise ValueError("autoscaling is off")
    policies = with_policies(config).policies
    own = None if policies is None else policies.autoscaling
    return {
        "policy": config.autoscaling if own is None else asdict(own),
        "target_utilization": config.target_utilization,
        "target_wait_s": config.target_wait_s,
        "target_ttft_s": config.target_ttft_s,
        "min_replicas": config.min_replicas,
        "max_replicas": config.max_replicas,
        "scale_up_cooldown_s": config.scale_up_cooldown_s,
        "scale_down_cooldown_s": config.scale_down_cooldown_s,
        "scale_to_zero_s": config.scale_to_zero_s,
    }


def scaler_of(settings: Mapping[str, Any]) -> Scaler:
    """Return the scaler of such settings.

    Raises:
        PolicyError: it has a policy of the operator's own, and that cannot be made.
    """
    policy = settings["policy"]
    if isinstance(policy, Mapping):
        policy = own_policy(Source(**policy))
    return Scaler(**{**settings, "policy": policy})


def scaler_for(config: "ServeConfig") -> Scaler:
    """Return what decides about the replicas of a deployment, without Serve.

    Raises:
        ValueError: see `settings_of`.
    """
    return scaler_of(settings_of(config))


def autoscaling_config(config: "ServeConfig") -> "AutoscalingConfig":
    """Return what Serve is to be told about scaling the replicas.

    A deployment starts with the fewest replicas, but at least one, so that a model that does
    not load is noticed; a redeploy keeps the number there is, unless the fewest is 0.

    Raises:
        ValueError: see `settings_of`.
    """
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    settings = settings_of(config)
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
        policy=AutoscalingPolicy(policy_function=_POLICY, policy_kwargs=settings),
    )
