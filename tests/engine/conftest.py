"""Triton's kernels run in its interpreter here: slow, but on any machine."""

import importlib.util
from collections.abc import Iterator

import pytest

from tests.engine.rig import Bench

HAS_TRITON = importlib.util.find_spec("triton") is not None
collect_ignore_glob = [] if HAS_TRITON else ["cuda/*", "attention/test_triton*"]


def pytest_report_header() -> str | None:
    return None if HAS_TRITON else "triton is not installed: CUDA kernels are not tested"


@pytest.fixture(scope="module")
def matrix_units() -> Iterator[None]:
    """Let `tl.dot` keep rows apart, as a GPU does."""
    from experiments.gpu.interpreted import matrix_units

    with matrix_units():
        yield


@pytest.fixture(params=[False, True], ids=["plain", "overlap"])
def each_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both of the engine's loops, for every Bench that a test makes."""
    overlap: bool = request.param
    monkeypatch.setattr(Bench, "overlap", overlap)
    return overlap
