"""The settings of a deployment, a file for each thing that they are about.

``ServeConfig`` (`deployments.config`) is all of them together.
"""

from deployments.settings.engine import EngineSettings
from deployments.settings.faults import FaultSettings
from deployments.settings.fleet import AUTOSCALINGS, FleetSettings
from deployments.settings.http import API_KEY_VARIABLE, HttpSettings
from deployments.settings.model import DEMO_MODEL, DEMO_NAME, ModelSettings
from deployments.settings.observation import ObservationSettings
from deployments.settings.scheduling import PLACEMENTS, SchedulingSettings

__all__ = [
    "API_KEY_VARIABLE",
    "AUTOSCALINGS",
    "DEMO_MODEL",
    "DEMO_NAME",
    "PLACEMENTS",
    "EngineSettings",
    "FaultSettings",
    "FleetSettings",
    "HttpSettings",
    "ModelSettings",
    "ObservationSettings",
    "SchedulingSettings",
]
