"""The Serve application: what runs, how often, and with what."""

import os
from collections.abc import Mapping
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import RayServeException

from deployments.autoscaling import autoscaling_config
from deployments.chat_template import with_template
from deployments.config import ConfigError, ServeConfig
from deployments.gateway import Gateway
from deployments.gpus import await_gpus
from deployments.keys import with_access
from deployments.periods import HEALTH_S, HEALTH_TIMEOUT_S
from deployments.pinning import PinnedRequestRouter
from deployments.policy_source import with_policies
from deployments.replica import Replica
from deployments.router import Router

APP_NAME = "tidegate"

# Above max_ongoing_requests Serve queues first in, first out, in front of our own queue, and
# a stream counts as one request for as long as it lasts. "Full" is ours to say.
_UNLIMITED = 100_000
# The work is done in torch's own threads; what Ray counts as CPUs only has to find room on
# small machines.
_SMALL_CPU = 0.1
# From a replica's last request to its end: streams close, the router hears of it.
_GOODBYE_S = 10.0


def build_app(args: Mapping[str, Any] | ServeConfig) -> Application:
    """Return the application: gateways, the router and the replicas.

    For ``serve deploy``: ``import_path: deployments.app:build_app``, settings under ``args``.
    It is then called on the cluster, and waits there for the GPUs that the replicas need.

    Args:
        args: settings of ``ServeConfig`` by name; for the API key the environment is asked too.

    Raises:
        ConfigError: unknown setting or wrong value, also in the key file, the chat template or a
            policy of the operator's own.
        RayServeException: the same, on a cluster; or it has too few GPUs.
    """
    try:
        config = args if isinstance(args, ServeConfig) else ServeConfig.of(args, os.environ)
        config = with_policies(with_template(with_access(config)))
    except ConfigError as error:
        if isinstance(args, ServeConfig) or not ray.is_initialized():
            raise
        # Of any other error Serve thinks that trying again might help.
        raise RayServeException(str(error)) from error
    if ray.is_initialized():
        await_gpus(config)
    inner = config.without_key()
    router = _router(config).bind(inner)
    replicas = _replica(config).bind(inner.with_access(None), router)
    return _gateway(config).bind(config, router, replicas)


def _router(config: ServeConfig) -> serve.Deployment:
    return _deployment(
        Router,
        config,
        num_replicas=1,
        ray_actor_options={"num_cpus": _SMALL_CPU},
        graceful_shutdown_timeout_s=1.0,
    )


def _replica(config: ServeConfig) -> serve.Deployment:
    if config.autoscaling == "off":
        number: dict[str, Any] = {"num_replicas": config.replicas}
    else:
        number = {"autoscaling_config": autoscaling_config(config)}
    if config.max_replicas_per_node is not None:
        number["max_replicas_per_node"] = config.max_replicas_per_node
    return _deployment(
        Replica,
        config,
        **number,
        ray_actor_options=_replica_resources(config),
        request_router_config=RequestRouterConfig(
            request_router_class=PinnedRequestRouter  # type: ignore[arg-type]
        ),
        graceful_shutdown_timeout_s=config.drain_s + _GOODBYE_S,
        max_surge_percent=config.surge_percent,
        # So many failures before one starts are the model's fault, and not a machine's.
        max_constructor_retry_count=2 * _most(config),
    )


def _most(config: ServeConfig) -> int:
    """Replicas there may be."""
    return config.replicas if config.autoscaling == "off" else config.max_replicas


def _gateway(config: ServeConfig) -> serve.Deployment:
    return _deployment(
        serve.ingress()(Gateway),
        config,
        num_replicas=config.gateways,
        ray_actor_options={"num_cpus": _SMALL_CPU},
        graceful_shutdown_timeout_s=config.gateway_drain_s,
        # There is always one that takes new requests.
        max_surge_percent=100,
    )


def _deployment(cls: type, config: ServeConfig, **options: Any) -> serve.Deployment:
    # Without the decorator's syntax, so that the classes stay plain and testable.
    plain: serve.Deployment = serve.deployment(cls)  # type: ignore[assignment]
    return plain.options(
        name=cls.__name__,
        max_ongoing_requests=_UNLIMITED,
        # Short periods: a dead replica is noticed and replaced within seconds.
        health_check_period_s=HEALTH_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        graceful_shutdown_wait_loop_s=0.2,
        # A line for each call between our own deployments would cost more than the call.
        logging_config={
            "enable_access_log": False,
            "log_level": config.log_level.upper(),
            "encoding": config.log_format.upper(),
        },
        **options,
    )


def _replica_resources(config: ServeConfig) -> dict[str, Any]:
    gpus = config.num_gpus_per_replica
    return {
        # So machines with GPUs and, for Ray, no CPUs take replicas alone.
        "num_cpus": 0 if gpus else _SMALL_CPU,
        "num_gpus": gpus,
        # Ray would set it to num_cpus, which is none of an engine's business.
        "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(config.threads_per_replica)}},
    }
