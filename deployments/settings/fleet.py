"""Settings: how many of what there are."""

from pydantic import Field

from deployments.settings.base import Settings

AUTOSCALINGS = ("off", "blocks", "wait", "ttft")


class FleetSettings(Settings):
    """How many of what there are."""

    replicas: int = Field(
        default=2,
        ge=1,
        le=1024,
        description="Copies of the model, each with memory of its own. `autoscaling` does not "
        "look at it.",
    )
    autoscaling: str = Field(
        default="off",
        description="What decides how many replicas there are: nothing (`off`: there are "
        "`replicas`), the KV `blocks` wanted (`target_utilization`), the oldest `wait` "
        "(`target_wait_s`), the time to first token (`ttft`, `target_ttft_s`), or a policy of your "
        "own, `FILE.py:NAME` or `MODULE:NAME`, a class or a function.",
    )
    min_replicas: int = Field(
        default=1,
        ge=0,
        le=1024,
        description="With `autoscaling`, the fewest replicas; with 0 the last one goes when nobody "
        "has asked for `scale_to_zero_s`, and the next request waits for a new one.",
    )
    max_replicas: int = Field(
        default=8, ge=1, le=1024, description="With `autoscaling`, the most replicas."
    )
    target_utilization: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="The share of KV blocks and of seats (`max_num_seqs`) that `autoscaling: "
        "blocks` keeps in use; with `wait` and `ttft`, what fewer replicas must be able to bear "
        "before one goes.",
    )
    target_wait_s: float = Field(
        default=1.0,
        gt=0,
        description="The longest that `autoscaling: wait` lets a request wait in the router, in "
        "seconds.",
    )
    target_ttft_s: float = Field(
        default=2.0,
        gt=0,
        description="The time to first token that `autoscaling: ttft` keeps for 9 of 10 requests, "
        "in seconds.",
    )
    scale_up_cooldown_s: float = Field(
        default=10.0, ge=0, description="Least time from any change to a rise, in seconds."
    )
    scale_down_cooldown_s: float = Field(
        default=60.0,
        ge=0,
        description="Least time from any change to a fall, in seconds; the load must have fitted "
        "fewer replicas for as long.",
    )
    scale_to_zero_s: float = Field(
        default=300.0,
        ge=0,
        description="Seconds without any request after which the last replica goes, if "
        "`min_replicas` is 0.",
    )
    max_replicas_per_node: int | None = Field(
        default=None, ge=1, le=100, description="Replicas on one machine at most."
    )
    surge_percent: int = Field(
        default=0,
        ge=0,
        le=100,
        description="Replicas, in percent, that a redeploy starts before it stops old ones; there "
        "must be room for them.",
    )
    gateways: int = Field(
        default=1,
        ge=1,
        le=256,
        description="HTTP front ends; one serves thousands of tokens a second.",
    )
