"""The application that is deployed, from whatever describes it."""

from pathlib import Path

import pytest
import yaml
from ray.serve import Application
from ray.serve.schema import ServeDeploySchema

from deployments.app import build_app
from deployments.config import ConfigError, ServeConfig

ROOT = Path(__file__).parents[2]


def test_serve_yaml_builds() -> None:
    content = yaml.safe_load((ROOT / "deployments" / "serve.yaml").read_text())
    schema = ServeDeploySchema.model_validate(content)
    (app,) = schema.applications
    assert app.import_path == "deployments.app:build_app"
    assert isinstance(build_app(app.args), Application)


def test_a_wrong_setting_is_said_before_anything_is_deployed() -> None:
    with pytest.raises(ConfigError, match="replicas"):
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


def test_cluster_yaml_has_a_head_and_workers_that_scale() -> None:
    cluster = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    types = cluster["available_node_types"]
    assert cluster["head_node_type"] in types
    workers = [kind for kind in types if kind != cluster["head_node_type"]]
    assert all(types[kind]["min_workers"] < types[kind]["max_workers"] for kind in workers)
