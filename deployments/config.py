"""ServeConfig: every setting of a deployment, documented in place.

The command line, ``serve.yaml`` and ``build_app`` all make one of these, so a setting has
one name, one default and one check.
"""

import os
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from deployments.validation import explain
from engine.rank import SchedPolicy

API_KEY_VARIABLE = "TIDEGATE_API_KEY"

DEMO_MODEL = "demo"
DEMO_NAME = "SmolLM2-135M-Instruct"

# The router's and the engine's clocks tick in milliseconds of wall-clock time.
TICKS_PER_SECOND = 1000


class ConfigError(ValueError):
    """A setting is wrong; the message is one line that names it, its value and its limit."""


class ServeConfig(BaseModel):
    """How a model is served.

    Make one with ``ServeConfig.of``, which turns what is wrong into one line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    model: str = Field(
        default=DEMO_MODEL,
        min_length=1,
        description="What to serve: `demo` for the packaged SmolLM2-135M-Instruct, "
        "a local folder, or a name on the Hugging Face Hub.",
    )
    served_model_name: str | None = Field(
        default=None,
        min_length=1,
        description="The model's name in the API. Default: as `model` says, "
        f"for the demo model {DEMO_NAME}.",
    )
    replicas: int = Field(
        default=2, ge=1, le=1024, description="Copies of the model, each with memory of its own."
    )
    autoscaling: Literal["off", "blocks", "wait", "ttft"] = Field(
        default="off",
        description="What decides how many replicas there are: nothing (`replicas`), the KV blocks "
        "wanted (`target_utilization`), the oldest wait (`target_wait_s`), or the time to first "
        "token (`target_ttft_s`).",
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
        description="The share of all KV blocks that `autoscaling: blocks` keeps in use.",
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
        default=60.0, ge=0, description="Least time from any change to a fall, in seconds."
    )
    scale_to_zero_s: float = Field(
        default=300.0,
        ge=0,
        description="Seconds without any request after which the last replica goes, if "
        "`min_replicas` is 0.",
    )
    surge_percent: int = Field(
        default=0,
        ge=0,
        le=100,
        description="Replicas, in percent, that a redeploy starts before it stops old ones; there "
        "must be room for them.",
    )
    max_replicas_per_node: int | None = Field(
        default=None, ge=1, le=100, description="Replicas on one machine at most."
    )
    gateways: int = Field(
        default=1,
        ge=1,
        le=256,
        description="HTTP front ends; one serves thousands of tokens a second.",
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(default=8000, ge=1, le=65535, description="TCP port to listen on.")
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        default="auto", description="Number format of the weights; `auto` takes the model's own."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto",
        description="Where a replica computes; `auto` takes a GPU if it was given one.",
    )
    num_gpus_per_replica: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="The share of a GPU that Ray sets aside for a replica; a replica uses one.",
    )
    gpu_wait_s: float = Field(
        default=60.0,
        ge=0,
        description="How long a deployment waits for the cluster to have the GPUs that its "
        "replicas need, in seconds, before it fails.",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        description="CPU threads that a replica computes with. "
        "Default: the machine's cores but one, divided by `replicas`, at least 1.",
    )
    max_model_len: int | None = Field(
        default=None,
        ge=2,
        description="Longest prompt and answer together, in tokens. Default: the model's context.",
    )
    max_num_seqs: int = Field(
        default=64, ge=1, description="Requests that a replica computes in one step at most."
    )
    max_num_batched_tokens: int = Field(
        default=2048,
        ge=1,
        description="Tokens that one step computes at most.",
    )
    prefill_chunk: int = Field(
        default=512,
        ge=1,
        description="Prompts are computed in pieces of at most this many tokens, so that a long "
        "one does not hold up others.",
    )
    block_size: int = Field(
        default=16, ge=1, le=1024, description="Tokens in one block of the KV cache."
    )
    num_blocks: int | None = Field(
        default=None,
        ge=1,
        description="Blocks of a replica's KV cache. Default: as many as its memory holds.",
    )
    max_waiting: int = Field(
        default=256, ge=1, description="Requests that wait inside one replica at most."
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
    max_priority: int = Field(
        default=1_000,
        ge=0,
        description="Priorities are accepted from minus this to plus this. Times `aging_seconds` "
        "it bounds how long the least urgent request can be passed.",
    )
    vllm_priority: bool = Field(
        default=False,
        description="Read the body's `priority` as vLLM does, lower being more urgent. "
        "The X-TL-Priority header is not touched by this.",
    )
    api_key: SecretStr | None = Field(
        default=None,
        description="Key that clients send as `Authorization: Bearer KEY`. "
        f"Default: the variable {API_KEY_VARIABLE}, without which the API is open to all.",
    )
    max_body_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1024, description="Larger request bodies get a 413."
    )
    max_prompts: int = Field(
        default=128, ge=1, description="Prompts in one request to /v1/completions at most."
    )
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
    allow_variance: bool = Field(
        default=False,
        description="Serve even if the start-up check finds that this machine's answers depend "
        "on what else is computed; a warning is logged instead.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least serious messages that are logged."
    )

    @field_validator("api_key")
    @classmethod
    def _key_fits_a_header(cls, value: SecretStr | None) -> SecretStr | None:
        key = None if value is None else value.get_secret_value()
        if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
            raise ValueError("must be printable ASCII characters without spaces")
        return value

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas must be at most max_replicas, {self.max_replicas}, "
                f"not {self.min_replicas}"
            )
        return self

    @classmethod
    def of(cls, args: Mapping[str, Any], environ: Mapping[str, str] = {}) -> Self:
        """Make a configuration from plain data, as from YAML; None is a setting's default.

        Args:
            args: settings by name.
            environ: environment variables; the API key may be there, out of everyone's sight.

        Raises:
            ConfigError: unknown setting or wrong value; never repeats the API key.
        """
        given = {k: v for k, v in args.items() if v is not None}
        # One that is set and empty is a mistake, and no reason to let everyone in.
        if API_KEY_VARIABLE in environ:
            given.setdefault("api_key", environ[API_KEY_VARIABLE])
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise ConfigError(explain(error, {"api_key"}).message) from None

    def to_args(self) -> dict[str, Any]:
        """Return plain data that ``of`` makes an equal configuration from.

        The API key is in it, in clear: not for logs.
        """
        args = self.model_dump(mode="json")
        if self.api_key is not None:
            args["api_key"] = self.api_key.get_secret_value()
        return args

    def without_key(self) -> Self:
        """Return the configuration for those who have nothing to do with clients."""
        return self.model_copy(update={"api_key": None})

    @property
    def key(self) -> str | None:
        """The API key in clear."""
        return None if self.api_key is None else self.api_key.get_secret_value()

    @property
    def name(self) -> str:
        """The model's name in the API."""
        if self.served_model_name is not None:
            return self.served_model_name
        return DEMO_NAME if self.model == DEMO_MODEL else self.model

    @property
    def fewest_replicas(self) -> int:
        """Replicas that are always meant to be there, at least."""
        return self.replicas if self.autoscaling == "off" else self.min_replicas

    @property
    def aging_ticks(self) -> int:
        """Aging for one level of priority, in milliseconds, at least 1."""
        return round(self.aging_seconds * TICKS_PER_SECOND)

    @property
    def threads_per_replica(self) -> int:
        """CPU threads that a replica computes with, at least 1."""
        if self.threads is not None:
            return self.threads
        # One core is left to the others: threads that wait for each other by spinning lose far
        # more than a core's worth when one of them is not running.
        return max(1, (len(os.sched_getaffinity(0)) - 1) // self.replicas)


def settings_table() -> str:
    """Return a Markdown table of all settings, for the documentation."""
    rows = ["| setting | flag | default | meaning |", "|---|---|---|---|"]
    defaults = ServeConfig().to_args()
    for name, field in ServeConfig.model_fields.items():
        default = defaults[name]
        shown = "" if default is None else f"`{str(default).lower()}`"
        flag = "`MODEL`" if name == "model" else f"`--{name.replace('_', '-')}`"
        rows.append(f"| `{name}` | {flag} | {shown} | {field.description} |")
    return "\n".join(rows) + "\n"
