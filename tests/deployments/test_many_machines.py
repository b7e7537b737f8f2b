"""Machines that go and come under nine streams: three of them, with room for a replica each."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deployments.conftest import plain_environment

pytestmark = [pytest.mark.cluster, pytest.mark.apart, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def long_model_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a context that is long enough for streams of seconds."""
    folder = tmp_path_factory.mktemp("long") / "tiny"
    shutil.copytree(tiny_model_dir, folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": 2048}))
    return folder


@pytest.fixture(scope="module")
def story(long_model_dir: Path) -> Any:
    """What happened, as ``cluster_app`` tells it: the cluster is the same for all tests here."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.deployments.cluster_app", str(long_model_dir)],
        capture_output=True,
        text=True,
        timeout=290,
        env=plain_environment(),
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_streams_are_whole_to_begin_with(story: Any) -> None:
    assert len(story["undisturbed"]) == 9
    assert {end for _, end in story["undisturbed"]} == {"length and done"}
    assert story["running"][0] == 3


def test_a_machine_is_lost_and_all_streams_end_with_their_text(story: Any) -> None:
    assert story["lost"] == story["undisturbed"]
    # It had some of them.
    assert story["resumed"] >= 1


def test_more_replicas_than_machines_and_those_there_are_serve(story: Any) -> None:
    assert story["running"][1] == 2
    assert story["health"] == 200
    assert story["short"] == story["undisturbed"]


def test_a_machine_comes_and_gets_the_replica_that_was_missing(story: Any) -> None:
    assert story["running"][2] == 3


def test_a_machine_that_is_drained_finishes_its_streams_and_ends(story: Any) -> None:
    """As when Kubernetes takes a pod away: nothing is lost, nothing has to move."""
    assert story["drained"] == story["undisturbed"]
    assert story["resumed_by_drain"] == 0
    assert story["running"][3] == 2
