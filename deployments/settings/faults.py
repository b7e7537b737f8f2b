"""Settings: when something counts as broken, and how long others wait for it."""

from pydantic import Field

from deployments.settings.base import Settings


class FaultSettings(Settings):
    """When something counts as broken, and how long others wait for it."""

    report_interval_s: float = Field(
        default=0.02,
        gt=0,
        le=10,
        description="A replica that works reports to the router at most this often, in seconds; "
        "at once when blocks come free.",
    )
    heartbeat_s: float = Field(
        default=1.0, gt=0, le=60, description="An idle replica reports this often, in seconds."
    )
    stall_s: float = Field(
        default=60.0,
        gt=0,
        description="A replica that has work but finishes no step for this long, in seconds, "
        "is unhealthy and is replaced.",
    )
    silent_s: float = Field(
        default=15.0,
        gt=0,
        description="A replica that has not reported for this long, in seconds, counts as lost: "
        "its requests move to others.",
    )
    hold_s: float = Field(
        default=60.0,
        gt=0,
        description="While no replica serves, requests wait for one this long, in seconds, and "
        "then get a 503.",
    )
    drain_s: float = Field(
        default=30.0,
        ge=0,
        description="A replica that is to go (a redeploy, fewer replicas), and `tidegate serve` "
        "after SIGTERM, take nothing new and finish what they have for this long, in seconds. What "
        "a replica has then moves to others; SIGTERM ends it.",
    )
    gateway_drain_s: float = Field(
        default=600.0,
        ge=0,
        description="A gateway that is to go finishes its open requests for this long, in "
        "seconds; they end with it, so it should be above the longest.",
    )
