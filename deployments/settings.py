"""The settings of a deployment, by what they are about; ``ServeConfig`` is all of them."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from engine.rank import SchedPolicy

API_KEY_VARIABLE = "TIDEGATE_API_KEY"

PLACEMENTS = ("most_free_blocks", "prefix_affinity")
AUTOSCALINGS = ("off", "blocks", "wait", "ttft")

DEMO_MODEL = "demo"
DEMO_NAME = "SmolLM2-135M-Instruct"


class _Settings(BaseModel):
    """Settings never change, and are what they say: nothing is coerced."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ModelSettings(_Settings):
    """The model, and how a replica computes it."""

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
    kernels: Literal["auto", "native", "triton", "torch"] = Field(
        default="auto",
        description="What computes the model, of the Llama, Mistral and Qwen kinds: `native` are "
        "Tidegate's own kernels for CPUs, compiled on the machine when they are first needed "
        "(AVX-512, a C++20 compiler), `triton` those for NVIDIA GPUs, which serve other models "
        "too, `torch` torch's, for any model; `auto` takes Tidegate's own where they can be used.",
    )
    max_model_len: int | None = Field(
        default=None,
        ge=2,
        description="Longest prompt and answer together, in tokens. Default: the model's context.",
    )
    generation_config: Literal["api", "model"] = Field(
        default="api",
        description="Where the defaults of temperature, top_p, top_k, min_p and "
        "repetition_penalty come from: `api`, as the API says, or the `model`'s "
        "generation_config.json, as with vLLM.",
    )
    allow_variance: bool = Field(
        default=False,
        description="Serve even if the start-up check finds that this machine's answers depend "
        "on what else is computed; a warning is logged instead.",
    )


class EngineSettings(_Settings):
    """What one replica holds and computes in a step."""

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
    target_tpot_ms: float | None = Field(
        default=None,
        ge=0.001,
        le=1e9,
        description="Milliseconds that one token of a running request should take at most while "
        "prompts are computed: these are then cut as short as that asks for, which a replica "
        "learns from its steps. Default: `prefill_chunk` alone cuts them.",
    )
    block_size: int = Field(
        default=16, ge=1, le=1024, description="Tokens in one block of the KV cache."
    )
    num_blocks: int | None = Field(
        default=None,
        ge=1,
        description="Blocks of a replica's KV cache. Default: as many as its memory holds.",
    )
    overlap: bool = Field(
        default=False,
        description="Plan the next step, and make the text of the last one, while the model "
        "runs on a thread of its own. Answers are the same.",
    )
    swap_gib: float = Field(
        default=0.0,
        ge=0,
        le=1 << 20,
        description="Memory of a replica's machine, in GiB, where requests that lose their place "
        "keep the KV blocks that they have computed, if copying is faster here than computing "
        "them again. 0: they are always computed again.",
    )
    max_waiting: int = Field(
        default=256, ge=1, description="Requests that wait inside one replica at most."
    )
    prefix_cache: bool = Field(
        default=True,
        description="A replica keeps what it computed, and does not compute again what a request "
        "has in common with earlier ones from its beginning on. It takes no memory that requests "
        "need.",
    )
    prefix_cache_scope: Literal["tenant", "shared"] = Field(
        default="tenant",
        description="Whose requests share what is kept: those of one `tenant` of `key_file`, or "
        "all (`shared`), and then a tenant can find out by timing what another one asked.",
    )


class SchedulingSettings(_Settings):
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


class FleetSettings(_Settings):
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


class FaultSettings(_Settings):
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


class HttpSettings(_Settings):
    """What clients meet."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(default=8000, ge=1, le=65535, description="TCP port to listen on.")
    api_key: SecretStr | None = Field(
        default=None,
        description="Key that clients send as `Authorization: Bearer KEY`. "
        f"Default: the variable {API_KEY_VARIABLE}, without which the API is open to all.",
    )
    key_file: str | None = Field(
        default=None,
        min_length=1,
        description="A YAML file of tenants, their API keys and their limits; it is read where "
        "the application is built.",
    )
    chat_template: str | None = Field(
        default=None,
        min_length=1,
        description="A Jinja file to write conversations with, instead of the model's own chat "
        "template; it is read where the application is built.",
    )
    tool_format: Literal["auto", "hermes", "llama3_json", "mistral"] = Field(
        default="auto",
        description="How the model writes calls of tools; `auto` looks it up in the chat template.",
    )
    cors_origins: list[str] = Field(
        default=[],
        description="Origins whose pages may call the API from a browser, such as "
        "`https://app.example`; `*` is any. As a flag, with commas between them.",
    )
    max_body_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1024, description="Larger request bodies get a 413."
    )
    max_prompts: int = Field(
        default=128,
        ge=1,
        description="Choices of one request at most: its prompts, times `n`.",
    )


class ObservationSettings(_Settings):
    """What operators see."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least serious messages that are logged."
    )
    log_format: Literal["text", "json"] = Field(
        default="text",
        description="How lines of the log are written: to be read, or one JSON object each.",
    )
    log_requests: bool = Field(
        default=False,
        description="Log a line for each request when it ends: its id, status, tokens and times, "
        "never its content.",
    )
    vllm_metrics: bool = Field(
        default=False,
        description="Say again under vLLM's names, `vllm:…`, what it has on its metrics page too.",
    )
    tenant_metrics: bool = Field(
        default=True,
        description="Name the tenants of `key_file` on the metrics page, which needs no key.",
    )
    otlp_endpoint: str | None = Field(
        default=None,
        min_length=1,
        description="Where traces go, as OTLP over HTTP: the collector's address, such as "
        "`http://localhost:4318`. Default: the variable OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or "
        "OTEL_EXPORTER_OTLP_ENDPOINT, without which there are none.",
    )
