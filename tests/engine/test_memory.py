"""engine.memory: a pool never takes more than there is."""

from pathlib import Path

import pytest
import torch

from engine import memory


def test_a_pool_on_the_cpu_takes_a_part_of_what_is_available() -> None:
    size = memory.pool_bytes(torch.device("cpu"))
    assert 0 < size < 1 << 50


def test_a_containers_limit_counts_where_it_is_lower_than_the_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pool sized by the machine's memory gets its container killed."""
    monkeypatch.setattr(memory, "_meminfo_available", lambda: 64 << 30)
    monkeypatch.setattr(memory, "_cgroup_available", lambda: 8 << 30)
    assert memory.pool_bytes(torch.device("cpu")) == 1 << 30


def test_without_either_figure_a_small_machine_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_meminfo_available", lambda: None)
    monkeypatch.setattr(memory, "_cgroup_available", lambda: None)
    assert memory.pool_bytes(torch.device("cpu")) == 1 << 30


@pytest.mark.parametrize(
    ("limit", "used", "left"),
    [("max", "5", None), ("1000", "300", 700), ("1000", "1200", 0), ("", "5", None)],
)
def test_the_control_groups_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, used: str, left: int | None
) -> None:
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text(used + "\n")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory._cgroup_available() == left
