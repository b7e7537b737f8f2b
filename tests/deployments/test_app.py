"""The application that is deployed, from whatever describes it."""

import subprocess
from pathlib import Path

import pytest
import ray
from ray.serve.exceptions import RayServeException

from deployments import app as module
from deployments.app import build_app
from deployments.config import ConfigError, ServeConfig
from deployments.launch import serve_environment

ROOT = Path(__file__).parents[2]


def test_a_wrong_setting_is_said_before_anything_is_deployed() -> None:
    with pytest.raises(ConfigError, match="replicas"):
        build_app({"replicas": 0})


def test_on_a_cluster_it_waits_for_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm#13388: without them the replicas would wait for ever, and say nothing."""
    asked: list[float] = []

    def refuse(config: ServeConfig) -> None:
        asked.append(config.num_gpus_per_replica)
        raise RayServeException("4 GPUs are wanted for the replicas, the cluster has 2")

    monkeypatch.setattr(module, "await_gpus", refuse)
    build_app({"num_gpus_per_replica": 0.5})
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with pytest.raises(RayServeException, match="4 GPUs are wanted"):
        build_app({"num_gpus_per_replica": 0.5})
    assert asked == [0.5]
    # Serve tries four times unless it is told in its own kind of error.
    with pytest.raises(RayServeException, match="replicas"):
        build_app({"replicas": 0})


def test_full_is_ours_to_say() -> None:
    """Above max_ongoing_requests, 5 by default, Serve queues in front of our own queue."""
    app = build_app(ServeConfig(replicas=3, gateways=2, num_gpus_per_replica=1.0))
    gateway = app._bound_deployment
    config, router, replica = gateway.init_args
    deployments = [gateway, *(one._bound_deployment for one in (router, replica))]
    assert [d.name for d in deployments] == ["Gateway", "Router", "Replica"]
    assert all(d.max_ongoing_requests >= 10_000 for d in deployments)
    assert [d.num_replicas for d in deployments] == [2, 1, 3]
    assert deployments[2].ray_actor_options["num_gpus"] == 1.0
    assert config.replicas == 3
    # Machines with GPUs and no CPUs are for replicas alone.
    assert deployments[2].ray_actor_options["num_cpus"] == 0


def test_whoever_is_to_go_has_time_to() -> None:
    """Serve kills what still runs after graceful_shutdown_timeout_s, 20 s by default."""
    app = build_app(ServeConfig(drain_s=50.0, gateway_drain_s=900.0, surge_percent=25))
    gateway = app._bound_deployment
    _, _, replica = gateway.init_args
    inner = replica._bound_deployment
    assert inner._deployment_config.graceful_shutdown_timeout_s > 50.0
    assert gateway._deployment_config.graceful_shutdown_timeout_s == 900.0
    # A redeploy starts the new gateways first: there is always one that takes requests.
    assert gateway._deployment_config.max_surge_percent == 100
    assert inner._deployment_config.max_surge_percent == 25


def test_a_fleet_is_given_up_when_none_of_it_starts_twice() -> None:
    """At the second failure, whatever the size, one machine that goes could be the reason."""
    for settings in ({"replicas": 3}, {"autoscaling": "wait", "max_replicas": 3, "replicas": 9}):
        replica = build_app(settings)._bound_deployment.init_args[2]._bound_deployment
        assert replica._deployment_config.max_constructor_retry_count == 6


def test_an_autoscaled_fleet_has_bounds_and_our_policy() -> None:
    scaled = {"autoscaling": "wait", "min_replicas": 0, "max_replicas": 5, "replicas": 3}
    replica = build_app(scaled)._bound_deployment.init_args[2]._bound_deployment
    autoscaling = replica._deployment_config.autoscaling_config
    assert (autoscaling.min_replicas, autoscaling.max_replicas) == (0, 5)
    # One, to find out at once whether the model loads.
    assert autoscaling.initial_replicas == 1
    fixed = build_app({"max_replicas_per_node": 1})._bound_deployment.init_args[2]
    assert fixed._bound_deployment._deployment_config.autoscaling_config is None
    assert fixed._bound_deployment._replica_config.max_replicas_per_node == 1


def test_only_gateways_get_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are pickled into every deployment's arguments, which Ray keeps."""
    monkeypatch.setenv("TIDEGATE_API_KEY", "s3cret")
    gateway = build_app({})._bound_deployment
    config, router, replica = gateway.init_args
    assert config.key == "s3cret"
    for one in (router, replica):
        assert one._bound_deployment.init_args[0] == config.without_key()
        assert one._bound_deployment.init_args[0].key is None


def test_policies_of_the_operators_go_as_text_to_where_they_run(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("class Mine:\n    def choose(self, *_): pass\ndef mine(*_): pass\n")
    settings = {"placement": f"{path}:Mine", "autoscaling": f"{path}:mine"}
    gateway = build_app(settings)._bound_deployment
    path.unlink()
    _, router, replica = gateway.init_args
    config = router._bound_deployment.init_args[0]
    assert "def choose" in config.policies.placement.text
    scaling = replica._bound_deployment._deployment_config.autoscaling_config
    assert "def mine" in scaling.policy.policy_kwargs["policy"]["text"]


def test_a_wrong_policy_is_said_before_anything_is_deployed(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("class Mine: pass\n")
    with pytest.raises(ConfigError, match=r"mine.py:Yours: defines no Yours"):
        build_app({"placement": f"{path}:Yours"})


def test_ray_env_says_to_a_shell_what_the_command_line_sets(tmp_path: Path) -> None:
    """A cluster that lacks one has another server than the one that was tested."""
    wrapper = tmp_path / "tidegate-haproxy"
    wrapper.write_text("#!/bin/sh\n")
    wrapper.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", "set -a; . deployments/ray.env; exec env"],
        cwd=ROOT,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    ours = {name: value for name, value in found.items() if name.startswith("RAY_")}
    assert ours == {**serve_environment(), "RAY_SERVE_HAPROXY_BINARY_PATH": str(wrapper)}


def test_streams_outlive_a_change_of_gateways() -> None:
    """Serve replaces HAProxy then, and the old one cuts what it still carries after this long."""
    assert int(serve_environment()["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]) >= 1800


@pytest.mark.parametrize("encoding", ["text", "json"])
def test_every_deployment_logs_in_the_format_that_was_set(encoding: str) -> None:
    gateway = build_app({"log_format": encoding, "log_level": "warning"})._bound_deployment
    _, router, replica = gateway.init_args
    for deployment in (gateway, router._bound_deployment, replica._bound_deployment):
        config = deployment._deployment_config.logging_config
        assert (config["encoding"], config["log_level"]) == (encoding.upper(), "WARNING")
        assert not config["enable_access_log"]
