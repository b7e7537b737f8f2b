"""engine.memory: a pool never takes more than there is, and equal machines get equal pools."""

from pathlib import Path

import pytest
import torch

from engine import memory

CPU = torch.device("cpu")
GIB = 1 << 30


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of files: 64 GiB, 40 of them available, no control group."""
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    describe(tmp_path, total=64, available=40)
    return tmp_path


def describe(machine: Path, total: int, available: int) -> None:
    lines = f"MemTotal: {total << 20} kB\nMemFree: 1 kB\nMemAvailable: {available << 20} kB\n"
    (machine / "meminfo").write_text(lines)


def test_replicas_that_start_one_after_the_other_get_equal_pools(machine: Path) -> None:
    """The larger pool would get all requests until the difference is used up."""
    first = memory.pool_bytes(CPU)
    describe(machine, total=64, available=30)
    assert memory.pool_bytes(CPU) == first == 8 * GIB


def test_a_busy_machine_gives_no_more_than_half_of_what_is_left(machine: Path) -> None:
    describe(machine, total=64, available=6)
    assert memory.pool_bytes(CPU) == 3 * GIB


def test_a_containers_limit_counts_where_it_is_lower_than_the_machines(machine: Path) -> None:
    """A pool sized by the machine's memory gets its container killed."""
    (machine / "memory.max").write_text(f"{16 * GIB}\n")
    (machine / "memory.current").write_text(f"{4 * GIB}\n")
    assert memory.pool_bytes(CPU) == 2 * GIB
    assert memory.free_bytes(CPU) == 12 * GIB


@pytest.mark.parametrize(("limit", "used"), [("max", "5"), ("", "5"), ("junk", "5")])
def test_a_control_group_without_a_limit_changes_nothing(
    machine: Path, limit: str, used: str
) -> None:
    (machine / "memory.max").write_text(limit + "\n")
    (machine / "memory.current").write_text(used + "\n")
    assert memory.free_bytes(CPU) == 40 * GIB


def test_more_used_than_the_limit_leaves_nothing(machine: Path) -> None:
    (machine / "memory.max").write_text("1000\n")
    (machine / "memory.current").write_text("1200\n")
    assert memory.free_bytes(CPU) == 0


def test_without_any_figure_a_small_machine_is_assumed(machine: Path) -> None:
    (machine / "meminfo").unlink()
    assert memory.pool_bytes(CPU) == GIB
