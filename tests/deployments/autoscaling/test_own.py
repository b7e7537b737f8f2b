"""An operator's own policy is asked as ours are, and may answer with nothing but a band."""

from typing import Any

import pytest

from deployments.autoscaling import Band, PolicyError, Source
from deployments.autoscaling.own import own_policy
from tests.deployments.autoscaling.fleet import QUIET, SCALER, with_load

FUNCTION = """
from deployments.autoscaling import Band, Demand, Settings
def mine(demand: Demand, target: int, settings: Settings) -> Band:
    return Band(demand.queued, demand.queued + round(10 * settings.target_utilization))
"""
CLASS = """
class Mine:
    def __init__(self):
        self.most = 0
    def band(self, demand, target, settings):
        from deployments.autoscaling.policies import Band, blocks
        self.most = max(self.most, blocks(demand, target, 0.5).least)
        return Band(self.most, self.most + 1)
"""


def source(text: str, name: str = "mine") -> Source:
    return Source("my.py", name, text)


def test_a_function_is_called() -> None:
    policy = own_policy(source(FUNCTION))
    assert policy(with_load(3.0, 1), 1, SCALER) == Band(20, 28)


def test_an_object_of_a_class_remembers() -> None:
    policy = own_policy(source(CLASS, "Mine"))
    answers = [policy(with_load(load, 1), 1, SCALER) for load in (1.0, 3.0, 1.0)]
    assert answers == [Band(2, 3), Band(6, 7), Band(6, 7)]
    assert own_policy(source(CLASS, "Mine"))(QUIET, 1, SCALER) == Band(0, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mine = 3", "mine is not a function, nor a class with a method band"),
        ("class mine: pass", "mine is not a function, nor a class with a method band"),
        ("def mine(demand): pass", r"mine must take \(demand, target, settings\)"),
        ("mine = max", r"mine must take \(demand, target, settings\)"),
        (
            "class mine:\n    def band(self): pass",
            r"mine.band must take \(demand, target, settings\)",
        ),
        ("class mine:\n    def __init__(self, x): pass", r"mine\(\) raises TypeError: .*'x'"),
        (
            "class mine:\n    def __init__(self): 1 / 0\n",
            r"mine\(\) raises ZeroDivisionError in line 2: division by zero",
        ),
    ],
)
def test_what_is_no_policy_is_refused(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        own_policy(source(text))


@pytest.mark.parametrize("answer", ["None", "3", "Band(2.5, 3)", "Band(3, 2)", "Band(0, None)"])
def test_an_answer_that_is_no_band_is_an_error(answer: str) -> None:
    text = f"from deployments.autoscaling import Band\ndef mine(*_): return {answer}"
    policy: Any = own_policy(source(text))
    with pytest.raises(PolicyError, match="must answer with a"):
        policy(QUIET, 1, SCALER)
