"""Settings: who goes first, and what waits where."""

from pydantic import Field

from deployments.settings.base import Settings
from engine.rank import SchedPolicy

PLACEMENTS = ("most_free_blocks", "prefix_affinity")


class SchedulingSettings(Settings):
    """Who goes first, and what waits where."""

    scheduling_policy: SchedPolicy = Field(
        default=SchedPolicy.PRIORITY,
        strict=False,
        description="`priority` with aging, or `fcfs`: first come, first served.",
    )
    aging_seconds: float = Field(
        default=10.0,
        ge=0.001,
        le=1_000_000,
        description="Seconds of waiting that one level of priority is worth: a request of "
        "priority 0 goes before those of priority P that come P times this long after it.",
    )
    max_priority: int = Field(
        default=1_000,
        ge=0,
        description="Priorities are accepted from minus this to plus this. Times `aging_seconds` "
        "it bounds how long the least urgent request can be passed.",
    )
    service_tiers: dict[str, int] = Field(
        default={"priority": 10, "flex": -10},
        description="The priority of each `service_tier` that requests may ask for beside `auto` "
        "and `default`, which have 0, within `max_priority`; as a flag, in JSON: "
        "`'{\"priority\": 10}'`.",
    )
    vllm_priority: bool = Field(
        default=False,
        description="Read the body's `priority` as vLLM does, lower being more urgent. "
        "The X-TL-Priority header is not touched by this.",
    )
    fair_tenants: bool = Field(
        default=True,
        description="The tenants of `key_file` share the replicas by weight, within a priority; "
        "if false, the rank alone decides.",
    )
    placement: str = Field(
        default="most_free_blocks",
        description="Which replica a request goes to: the one with `most_free_blocks`, or by "
        "`prefix_affinity` the one that has most of its prompt in its prefix cache, unless that "
        "one is too far behind (`affinity_slack`); or as a policy of your own says, "
        "`FILE.py:CLASS` or `MODULE:CLASS`. A file is read where the application is built.",
    )
    affinity_slack: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="With `prefix_affinity`, how many fewer blocks than the freest replica the "
        "one that holds the prompt may have free, as a share of the pool; nor may it be more than "
        "three times the blocks that it saves.",
    )
    max_queued: int = Field(
        default=1024,
        ge=0,
        description="Requests that wait in the router at most; one more gets a 429.",
    )
    lookahead: int = Field(
        default=2,
        ge=0,
        description="Requests that the router places on a replica beyond what fits now, so that "
        "none of its steps starves. 0 keeps all waiting requests where they can be reordered.",
    )
    admission_preemption: int = Field(
        default=0,
        ge=0,
        description="A request that waits may take the place of a running one whose priority is "
        "at least this many levels lower; that one goes on later, with the same answer. 0: never.",
    )
    max_admission_preemptions: int = Field(
        default=3,
        ge=1,
        description="Times that one request can lose its place to more urgent ones.",
    )
    max_passes: int = Field(
        default=0,
        ge=0,
        description="Times that a request that waits in a replica for room may be passed by "
        "smaller ones that fit where it does not. 0: nobody passes.",
    )
