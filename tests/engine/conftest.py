"""Triton's kernels run in its interpreter here: slow, but on any machine."""

import importlib.util
from collections.abc import Iterator

import pytest

from engine.sampling import Sampler
from tests.engine.rig import Bench, EarlySampler

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


_LOOPS = {"plain": (False, Sampler), "overlap": (True, Sampler), "ahead": (True, EarlySampler)}


@pytest.fixture(params=_LOOPS)
def each_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way in which the engine makes its steps, for every Bench that a test makes."""
    loop: str = request.param
    overlap, sampler = _LOOPS[loop]
    monkeypatch.setattr(Bench, "overlap", overlap)
    monkeypatch.setattr(Bench, "sampler", sampler)
    return loop
