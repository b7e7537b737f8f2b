"""The router's configuration, from the settings of a deployment."""

from collections.abc import Callable
from random import Random

from deployments.config import ServeConfig
from deployments.policy_source import own_placement, with_policies
from router.config import RouterConfig
from router.guarded import Guarded
from router.policy import MostFreeBlocks, PlacementPolicy
from router.prefix_affinity import PrefixAffinity
from router.tenants import Terms

SETTLE_HEARTBEATS = 2.0
"""A new router places nothing until the replicas had so long to report to it."""


def router_config(config: ServeConfig, expecting: int) -> RouterConfig:
    """Return how the router behaves.

    Args:
        config: of the deployment.
        expecting: replicas that are meant to be there.
    """
    tenants = () if config.access is None else config.access.tenants
    return RouterConfig(
        policy=config.scheduling_policy,
        aging_ms=config.aging_ticks,
        lookahead=config.lookahead,
        max_queued=config.max_queued,
        expecting=expecting,
        settle_s=SETTLE_HEARTBEATS * config.heartbeat_s,
        suspect_after_s=max(2.0, 2 * config.heartbeat_s),
        lost_after_s=config.silent_s,
        admission_preemption=config.admission_preemption,
        tenants=tuple(
            Terms(one.name, one.weight, one.max_in_flight, one.tokens_per_minute) for one in tenants
        ),
        fair_tenants=config.fair_tenants,
    )


def placement_policy(
    config: ServeConfig, rng: Random, mistaken: Callable[[str], None]
) -> PlacementPolicy:
    """Return what chooses among replicas.

    Args:
        config: of the deployment.
        rng: for a policy of the operator's own that asks for one.
        mistaken: hears what such a policy does wrong; see `router.guarded.Guarded`.

    Raises:
        ConfigError: the operator's own policy cannot be made.
    """
    policies = with_policies(config).policies
    if policies is not None and policies.placement is not None:
        return Guarded(own_placement(policies.placement, rng), mistaken)
    if config.placement == "prefix_affinity":
        return PrefixAffinity(slack=config.affinity_slack)
    return MostFreeBlocks()
