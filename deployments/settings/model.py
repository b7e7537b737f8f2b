"""Settings: the model, and how a replica computes it."""

from typing import Literal

from pydantic import Field

from deployments.settings.base import Settings

DEMO_MODEL = "demo"
DEMO_NAME = "SmolLM2-135M-Instruct"


class ModelSettings(Settings):
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
        "(AVX-512, and AMX where there is one; a C++20 compiler), `triton` those for NVIDIA GPUs, "
        "which serve other models too, `torch` torch's, for any model; `auto` takes Tidegate's "
        "own where they can be used.",
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
