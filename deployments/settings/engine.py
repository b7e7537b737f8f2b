"""Settings: what one replica holds and computes in a step."""

from typing import Literal

from pydantic import Field

from deployments.settings.base import Settings


class EngineSettings(Settings):
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
