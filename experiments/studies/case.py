"""Case: one run that a study makes."""

from dataclasses import dataclass

from experiments.loads.load import Load
from experiments.simulator.scenario import Scenario
from experiments.simulator.step_time import StepTime


@dataclass(frozen=True, slots=True)
class Case:
    """One variant in one setting, once. What differs only in the seed is told as one.

    Attributes:
        setting: what all variants are put into, such as "conversation, 85%".
        variant: what is compared, such as "round robin".
        scenario, load, step_time: what is simulated.
        warm_s: requests that come before that are sent, but not counted.
    """

    setting: str
    variant: str
    scenario: Scenario
    load: Load
    step_time: StepTime
    warm_s: float = 0.0
