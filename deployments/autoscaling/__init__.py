"""How many replicas: what the router knows, what a policy wants of it, and when to change.

Pure: no Ray (`autoscaling_config` imports it late, for whoever deploys) and no clock, so that
a simulator runs the very same policies. Serve ships `ServePolicy` to its controller by value,
with what it uses of this package; it may use nothing from elsewhere in the project.
"""

from deployments.autoscaling.demand import Demand, stats_of
from deployments.autoscaling.policies import Band, Settings
from deployments.autoscaling.scaler import Scaler, State
from deployments.autoscaling.serve import RELAY_S, ServePolicy, autoscaling_config, scaler_for
from deployments.autoscaling.source import PolicyError, Source
from deployments.autoscaling.ttft import TtftWindow

__all__ = [
    "RELAY_S",
    "Band",
    "Demand",
    "PolicyError",
    "Scaler",
    "ServePolicy",
    "Settings",
    "Source",
    "State",
    "TtftWindow",
    "autoscaling_config",
    "scaler_for",
    "stats_of",
]
