"""Faults: what is done to the server, and the record of when it was."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What can be done to a server, most of it to one of its processes."""

    KILL_REPLICA = "kill replica"
    KILL_ROUTER = "kill router"
    KILL_GATEWAY = "kill gateway"
    FREEZE_REPLICA = "freeze replica"
    FREEZE_ROUTER = "freeze router"
    FREEZE_GATEWAY = "freeze gateway"
    THAW = "thaw"
    KILL_CONTROLLER = "kill controller"
    KILL_HAPROXY = "kill HAProxy"
    REDEPLOY = "redeploy"
    RESCALE = "rescale"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        at: on this process's monotonic clock, in seconds.
        kind: what was done.
        pid: to which process; 0 if to all of them.
    """

    at: float
    kind: Kind
    pid: int
