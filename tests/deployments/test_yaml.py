"""The files that describe a cluster are ones that Ray, Kubernetes and Tidegate take."""

import copy
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml
from ray.autoscaler._private.kuberay import autoscaling_config as kuberay
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts.scripts import start as ray_start
from ray.serve import Application
from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema

from deployments.app import build_app
from deployments.config import ServeConfig
from deployments.launch import serve_environment

ROOT = Path(__file__).parents[2]
SERVE = ROOT / "deployments" / "serve.yaml"
KUBERAY = ROOT / "deployments" / "kuberay.yaml"
HAPROXY = "RAY_SERVE_HAPROXY_BINARY_PATH"


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def application(content: Any) -> ServeApplicationSchema:
    """The one application of a Serve configuration, which `serve deploy` would take."""
    (app,) = ServeDeploySchema.model_validate(content).applications
    assert app.import_path == "deployments.app:build_app"
    return app


def parts(app: Application) -> tuple[Any, Any, Any]:
    """The deployments of an application: gateway, router, replica."""
    gateway = app._bound_deployment
    _, router, replica = gateway.init_args
    return gateway, router._bound_deployment, replica._bound_deployment


# ---- serve.yaml -----------------------------------------------------------------------------


def test_serve_yaml_builds() -> None:
    assert isinstance(build_app(application(read(SERVE)).args), Application)


def test_what_serve_yaml_suggests_builds_too() -> None:
    switched_on, count = re.subn(r"(?m)^( +)# (\w+: \w+)$", r"\1\2", SERVE.read_text())
    assert count >= 6
    args = application(yaml.safe_load(switched_on)).args
    config = ServeConfig.of(args)
    assert (config.autoscaling, config.num_gpus_per_replica) == ("blocks", 1)
    assert isinstance(build_app(args), Application)


# ---- cluster.yaml ---------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Any:
    """What `ray up` makes of cluster.yaml."""
    prepared = prepare_config(read(ROOT / "cluster.yaml"))
    validate_config(prepared)
    return prepared


def test_cluster_yaml_has_a_head_and_workers_that_scale(cluster: Any) -> None:
    types = cluster["available_node_types"]
    assert set(types) == {"head", "gpu_worker"}
    assert cluster["head_node_type"] == "head"
    worker = types["gpu_worker"]
    assert worker["min_workers"] < worker["max_workers"] == cluster["max_workers"]
    assert types["head"]["max_workers"] == 0


def test_workers_of_cluster_yaml_have_room_for_replicas_alone(cluster: Any) -> None:
    room = cluster["available_node_types"]["gpu_worker"]["resources"]
    gateway, router, replica = parts(build_app({"num_gpus_per_replica": 1}))
    assert room == {"CPU": 0, "GPU": 1}
    assert replica.ray_actor_options["num_cpus"] <= room["CPU"]
    assert replica.ray_actor_options["num_gpus"] <= room["GPU"]
    for other in (gateway, router):
        assert other.ray_actor_options["num_cpus"] > room["CPU"]


@pytest.mark.parametrize("kind", ["head", "worker"])
def test_start_commands_of_cluster_yaml_start_ray_with_our_environment(
    cluster: Any, kind: str, tmp_path: Path
) -> None:
    """A node that lacks a variable has another server than the one that was tested."""
    for name, script in {"ray": 'echo "$@"; env', "tidegate-haproxy": ""}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    (mounted,) = cluster["file_mounts"].items()
    assert mounted == ("~/tidegate", ".")
    (tmp_path / "tidegate").symlink_to(ROOT)
    done = subprocess.run(
        ["sh", "-c", cluster[f"{kind}_start_ray_commands"][-1]],
        env={"HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin", "RAY_HEAD_IP": "10.0.0.1"},
        capture_output=True,
        text=True,
        check=True,
    )
    arguments, *rest = done.stdout.splitlines()
    command, *options = arguments.split()
    assert command == "start"
    found = ray_start.make_context("start", options).params
    assert found["head"] == (kind == "head")
    assert found["address"] == (None if found["head"] else "10.0.0.1:6379")
    ours = dict(line.split("=", 1) for line in rest if line.startswith("RAY_") and "=" in line)
    del ours["RAY_HEAD_IP"]
    assert ours == {**serve_environment(), HAPROXY: str(tmp_path / "tidegate-haproxy")}


# ---- kuberay.yaml ---------------------------------------------------------------------------


@pytest.fixture
def service() -> Any:
    """The RayService, of which all that it may say has been checked."""
    content = read(KUBERAY)
    jsonschema.validate(content, read(ROOT / "tests" / "data" / "rayservice.yaml"))
    return content


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.rayClusterDeletionDelaySeconds", "600"),
        ("spec.serveConfig", ""),
        ("spec.rayClusterConfig.headGroupSpec.rayStartParams.num-cpus", 4),
        ("spec.rayClusterConfig.workerGroupSpecs.0.maxReplica", 3),
        ("spec.rayClusterConfig.workerGroupSpecs.0.template.spec.containers.0.resource", {}),
        ("spec.rayClusterConfig.workerGroupSpecs.0.template.spec.containers.0.env.0.value", 1),
    ],
)
def test_a_slip_in_kuberay_yaml_would_be_seen(service: Any, path: str, value: Any) -> None:
    wrong = copy.deepcopy(service)  # its environment is one list in several places
    place, keys = wrong, path.split(".")
    for key in keys[:-1]:
        place = place[int(key)] if key.isdigit() else place[key]
    place[keys[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, read(ROOT / "tests" / "data" / "rayservice.yaml"))


def test_kuberay_yaml_deploys_what_serve_yaml_does(service: Any) -> None:
    there, here = yaml.safe_load(service["spec"]["serveConfigV2"]), read(SERVE)
    assert there["http_options"] == here["http_options"]
    ours, theirs = application(here), application(there)
    assert (theirs.name, theirs.route_prefix) == (ours.name, ours.route_prefix)
    assert isinstance(build_app(theirs.args), Application)


def pods(service: Any) -> list[tuple[Any, Any]]:
    """The groups of pods, with their one container: head, workers."""
    cluster = service["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [(group, *group["template"]["spec"]["containers"]) for group in groups]


def test_all_pods_have_our_environment(service: Any) -> None:
    for _, container in pods(service):
        found = {variable["name"]: variable for variable in container["env"]}
        assert len(found) == len(container["env"])
        key = found.pop("TIDEGATE_API_KEY")
        assert key["valueFrom"]["secretKeyRef"] == {"name": "tidegate", "key": "api-key"}
        values = {name: variable["value"] for name, variable in found.items()}
        # The image has a link there.
        assert Path(values.pop(HAPROXY)).name == "tidegate-haproxy"
        del values["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]
        assert values == serve_environment()


def test_ray_reads_in_kuberay_yaml_what_the_pods_have_room_for(service: Any) -> None:
    """Ray's autoscaler makes its decisions from this, without looking at a pod."""
    spec = service["spec"]["rayClusterConfig"]
    resource = {"metadata": {"name": "tidegate", "namespace": "default"}, "spec": spec}
    derived = kuberay._derive_autoscaling_config_from_ray_cr(resource)
    worker = derived["available_node_types"]["gpu"]
    assert (worker["resources"]["CPU"], worker["resources"]["GPU"]) == (0, 1)
    assert derived["available_node_types"]["headgroup"]["resources"]["CPU"] > 0
    assert derived["idle_timeout_minutes"] == 5

    args = application(yaml.safe_load(service["spec"]["serveConfigV2"])).args
    config = ServeConfig.of(args)
    assert (worker["min_workers"], worker["max_workers"]) == (
        config.min_replicas,
        config.max_replicas,
    )
    gateway, router, replica = parts(build_app(args))
    assert replica.ray_actor_options["num_cpus"] == 0
    assert gateway.ray_actor_options["num_cpus"] > 0 < router.ray_actor_options["num_cpus"]


def test_start_parameters_in_kuberay_yaml_are_options_of_ray_start(service: Any) -> None:
    for group, _ in pods(service):
        options = [f"--{name}={value}" for name, value in group["rayStartParams"].items()]
        assert ray_start.make_context("start", options).params["num_cpus"] is not None


def test_what_is_to_go_on_kubernetes_has_time_to(service: Any) -> None:
    args = application(yaml.safe_load(service["spec"]["serveConfigV2"])).args
    gateway, _, replica = (one._deployment_config for one in parts(build_app(args)))
    for group, container in pods(service):
        found = {variable["name"]: variable.get("value") for variable in container["env"]}
        # Serve drains the replica within Ray's drain of the node, within Kubernetes' patience.
        drain_s = float(found["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
        patience_s = group["template"]["spec"]["terminationGracePeriodSeconds"]
        assert replica.graceful_shutdown_timeout_s < drain_s < patience_s
    kept_s = service["spec"]["rayClusterDeletionDelaySeconds"]
    assert kept_s >= gateway.graceful_shutdown_timeout_s


def test_the_image_for_kubernetes_has_the_ray_that_was_tested(service: Any) -> None:
    assert service["spec"]["rayClusterConfig"]["rayVersion"] == ray.__version__
    assert f"FROM rayproject/ray:{ray.__version__}-py311\n" in KUBERAY.read_text()
    assert len({container["image"] for _, container in pods(service)}) == 1
