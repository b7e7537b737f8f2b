"""The limits that follow from a machine and a model."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from experiments.bench import machine_speed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tensors = {"model.embed_tokens.weight": torch.ones(50, 4), "model.norm.weight": torch.ones(4)}
    save_file(tensors, tmp_path / "model-1.safetensors", metadata={"format": "pt"})
    return tmp_path


def test_a_table_counts_only_where_it_is_also_the_head(folder: Path) -> None:
    assert machine_speed.weights_of(folder) == (4, 200)
    save_file({"lm_head.weight": torch.ones(60, 4)}, folder / "model-2.safetensors")
    assert machine_speed.weights_of(folder) == (4, 240)


def test_limits_follow_from_the_rates(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_speed, "resolve", lambda model: folder)
    rows = list(machine_speed.measure("m", ["bfloat16"], None, array_bytes=4096, side=8))
    reading, multiplying, one, prefill = (row.value for row in rows)
    assert one == pytest.approx(reading * 1e9 / (204 * 2))
    assert prefill == pytest.approx(multiplying * 1e9 / (2 * 4))
