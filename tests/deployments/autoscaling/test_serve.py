"""What we rely on in Serve's autoscaler: a new minor release of Ray may change it."""

import json
import logging
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from ray.serve._private.autoscaling_state import (
    DeploymentAutoscalingState,
    _resolve_policy_callable,
)
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve._private.config import DeploymentConfig, ReplicaConfig
from ray.serve._private.deployment_info import DeploymentInfo
from ray.serve._private.metrics_utils import InMemoryMetricsStore
from ray.serve.autoscaling_policy import _apply_autoscaling_config
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from deployments.autoscaling import Demand, autoscaling_config, stats_of
from deployments.config import ServeConfig
from tests.deployments.autoscaling.fleet import QUIET, with_load
from tests.deployments.conftest import plain_environment

SETTINGS = ServeConfig(
    autoscaling="blocks", min_replicas=0, max_replicas=4, scale_to_zero_s=100.0, replicas=3
)
DEPLOYMENT = DeploymentID(name="Replica", app_name="tidegate")


def shipped(config: AutoscalingConfig) -> AutoscalingConfig:
    """The way to the controller: through protobuf, as part of the deployment's settings."""
    sent = DeploymentConfig(autoscaling_config=config).to_proto_bytes()
    received = DeploymentConfig.from_proto_bytes(sent).autoscaling_config
    assert received is not None
    return received


def deployed(config: ServeConfig) -> DeploymentInfo:
    return DeploymentInfo(
        deployment_config=DeploymentConfig(autoscaling_config=autoscaling_config(config)),
        replica_config=ReplicaConfig.create(object),
        start_time_ms=0,
        deployer_job_id="",
        version="1",
    )


@dataclass
class Controller:
    """Serve's control loop about one deployment, with Serve's own wrapping of the policy."""

    config: AutoscalingConfig
    target: int = 1
    waiting_calls: float = 0.0
    state: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        policy: Callable[[AutoscalingContext], tuple[int, dict[str, Any]]]
        policy = _apply_autoscaling_config(_resolve_policy_callable(self.config.policy))
        self._policy = policy

    def tick(self, now: float, demand: Demand | None, running: int) -> int:
        """Ask the policy as the controller does, with what the replicas that run relay."""
        replicas = [ReplicaID(f"replica-{n}", deployment_id=DEPLOYMENT) for n in range(running)]
        store = InMemoryMetricsStore()
        if demand is not None:
            store.add_metrics_point(stats_of(demand), now)
        metrics = {
            str(name): dict.fromkeys(replicas, series) for name, series in store.data.items()
        }
        context = AutoscalingContext(
            deployment_id=DEPLOYMENT,
            deployment_name=DEPLOYMENT.name,
            app_name=DEPLOYMENT.app_name,
            current_num_replicas=running,
            target_num_replicas=self.target,
            running_replicas=replicas,
            total_num_requests=lambda: self.waiting_calls,
            total_queued_requests=None,
            aggregated_metrics=lambda: pytest.fail("averages over time are of no use"),
            raw_metrics=lambda: metrics if running else {},
            capacity_adjusted_min_replicas=self.config.min_replicas,
            capacity_adjusted_max_replicas=self.config.max_replicas,
            policy_state=self.state.copy(),
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=now,
            config=self.config,
        )
        self.target, self.state = self._policy(context)
        return self.target


def test_serve_adds_no_delay_and_no_damping_of_its_own() -> None:
    """Up at once when the cool-down is over, down to 1 and to 0, and woken by a call."""
    controller = Controller(shipped(autoscaling_config(SETTINGS)))
    busy = [controller.tick(t, with_load(2.2, 1, at=t), 1) for t in (0.0, 5.0, 10.0)]
    assert busy == [1, 1, 3]
    assert controller.tick(11.0, with_load(2.2, 1, at=11.0), 1) == 3
    idle = {
        t: controller.tick(float(t), replace(QUIET, at=float(t), idle_s=t - 20.0), 3)
        for t in range(20, 200)
    }
    changes = {t: n for t, n in idle.items() if n != idle.get(t - 1, 3)}
    # 20 + 60 s of low load; then 60 s after that, since it has been idle for 100 s by then.
    assert changes == {80: 1, 141: 0}
    assert controller.tick(201.0, None, 0) == 0
    controller.waiting_calls = 0.2
    assert controller.tick(202.0, None, 0) == 1
    controller.waiting_calls = 0.0
    assert controller.tick(203.0, None, 0) == 1
    assert controller.tick(204.0, None, 1) == 1


def test_the_target_is_held_while_nothing_is_relayed() -> None:
    controller = Controller(shipped(autoscaling_config(SETTINGS)), target=3)
    assert [controller.tick(float(t), None, t % 4) for t in range(300)] == [3] * 300


def test_serves_bounds_count_which_move_with_the_target_capacity() -> None:
    controller = Controller(autoscaling_config(SETTINGS))
    controller.config = controller.config.model_copy(update={"max_replicas": 2})
    ticks = [controller.tick(t, with_load(9.0, 1, at=t), 1) for t in (0.0, 10.0)]
    assert ticks == [1, 2]
    controller.config = controller.config.model_copy(update={"min_replicas": 2})
    idle = [controller.tick(t, replace(QUIET, at=t), 2) for t in (20.0, 80.0, 140.0)]
    assert idle == [2, 2, 2]


def test_settings_reach_serve() -> None:
    config = shipped(autoscaling_config(SETTINGS))
    assert (config.min_replicas, config.max_replicas) == (0, 4)
    assert config.policy.policy_kwargs["scale_to_zero_s"] == 100.0
    with pytest.raises(ValueError, match="off"):
        autoscaling_config(ServeConfig())


@pytest.mark.parametrize(("fewest", "first", "again"), [(2, 2, 4), (0, 1, 1)])
def test_a_redeploy_keeps_the_number_there_is_unless_it_may_be_none(
    fewest: int, first: int, again: int
) -> None:
    """A fleet that may sleep starts with one, so that a model that does not load is noticed."""
    state = DeploymentAutoscalingState(DEPLOYMENT)
    config = SETTINGS.model_copy(update={"min_replicas": fewest})
    assert state.register(deployed(config), 0) == first
    changed = config.model_copy(update={"target_utilization": 0.5})
    assert state.register(deployed(changed), 4) == again


def test_values_are_taken_and_relayed_about_once_a_second() -> None:
    """Serve takes them every fifth of the look-back and sends them every interval."""
    config = autoscaling_config(SETTINGS)
    assert config.metrics_interval_s == 1.0
    assert config.look_back_period_s * 0.2 >= 0.5


OWN = """
from deployments.autoscaling import Band, Demand, Settings
from deployments.autoscaling.policies import blocks
def mine(demand: Demand, target: int, settings: Settings) -> Band:
    if demand.queued == 13:
        raise RuntimeError("thirteen")
    if demand.queued == 14:
        exit("fourteen")
    wanted = blocks(demand, target, settings.target_utilization).least
    return Band(wanted + 1, wanted + 1)
"""


def own(tmp_path: Path, text: str = OWN) -> ServeConfig:
    path = tmp_path / "own.py"
    path.write_text(text)
    config = SETTINGS.model_copy(update={"autoscaling": f"{path}:mine", "min_replicas": 1})
    return config.model_copy(update={"scale_up_cooldown_s": 0.0})


def test_a_policy_of_the_operators_decides_in_the_controller(tmp_path: Path) -> None:
    controller = Controller(shipped(autoscaling_config(own(tmp_path))))
    assert [controller.tick(t, with_load(2.2, 1, at=t), 1) for t in (0.0, 1.0)] == [4, 4]


def test_what_it_raises_is_logged_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever came out of the policy would stop the controller's work for all deployments."""
    monkeypatch.setattr(logging.getLogger("ray.serve"), "propagate", True)
    controller = Controller(shipped(autoscaling_config(own(tmp_path))), target=2)
    for second in range(300):
        unlucky = replace(QUIET, at=float(second), queued=13 + second % 2)
        assert controller.tick(float(second), unlucky, 2) == 2
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len({record.getMessage() for record in errors}) == 9
    first = errors[0]
    assert first.getMessage().startswith("The autoscaling policy failed, 1 times so far")
    assert first.exc_info is not None
    shown = "".join(traceback.format_exception(first.exc_info[1]))
    assert 'raise RuntimeError("thirteen")' in shown
    # The bounds hold all the same, and it is asked again.
    controller.config = controller.config.model_copy(update={"min_replicas": 3})
    assert controller.tick(300.0, replace(QUIET, at=300.0, queued=13), 2) == 3
    assert controller.tick(301.0, with_load(2.2, 3, at=301.0), 3) == 4


def test_one_that_cannot_be_made_in_the_controller_changes_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It imports what only the machine has that deploys."""
    monkeypatch.setattr(logging.getLogger("ray.serve"), "propagate", True)
    config = autoscaling_config(SETTINGS)
    source = {"path": "own.py", "name": "mine", "text": "import only_there"}
    config.policy.policy_kwargs["policy"] = source
    controller = Controller(shipped(config), target=3)
    assert [controller.tick(t, with_load(9.0, 3, at=t), 3) for t in (0.0, 100.0)] == [3, 3]
    assert "No module named 'only_there'" in caplog.text


WITHOUT_THE_PROJECT = """
import json, sys
sys.modules.update(dict.fromkeys(("deployments", "engine", "router")))
from pathlib import Path
from types import SimpleNamespace
from ray import cloudpickle
policy = cloudpickle.loads(Path(sys.argv[1]).read_bytes())
kwargs = json.loads(Path(sys.argv[2]).read_text())
stats = dict(
    at=1.0, replicas=1.0, total_blocks=10.0, free_blocks=0.0, seats=4.0, queued=3.0,
    queued_blocks=9.0, running=4.0, oldest_wait_s=7.0, idle_s=0.0,
)
point = lambda value: {"r": [SimpleNamespace(timestamp=1.0, value=value)]}
print(policy(**kwargs)(SimpleNamespace(
    capacity_adjusted_min_replicas=1, capacity_adjusted_max_replicas=9, policy_state={},
    raw_metrics={name: point(value) for name, value in stats.items()}, target_num_replicas=1,
    current_time=5.0,
))[0])
"""


@pytest.mark.parametrize(("whose", "wanted"), [("ours", "3"), ("own", "4")])
def test_the_controller_needs_no_module_of_ours(tmp_path: Path, whose: str, wanted: str) -> None:
    """It runs where Ray was started, which need not be where the project is installed."""
    config = own(tmp_path)
    if whose == "ours":
        config = config.model_copy(update={"autoscaling": "blocks"})
    policy = shipped(autoscaling_config(config)).policy
    pickled, settings = tmp_path / "policy", tmp_path / "settings"
    pickled.write_bytes(policy.get_serialized_policy_def() or b"")
    settings.write_text(json.dumps(policy.policy_kwargs))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_PROJECT, str(pickled), str(settings)],
        capture_output=True,
        text=True,
        timeout=60,
        env=plain_environment(),
        cwd=tmp_path,
        check=False,
    )
    assert done.stdout.split() == [wanted], done.stderr


def test_a_simulator_may_import_the_policies_without_ray() -> None:
    code = "import sys, deployments.autoscaling; print(*{'ray', 'torch', 'numpy'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == []
