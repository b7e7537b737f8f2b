"""Scenario: what a simulation runs a load on."""

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from deployments.config import ServeConfig

FailureKind: TypeAlias = Literal["crash", "silence"]
"""The process dies, which whoever talks to it sees at once; or its machine is not heard of any
more, which shows when its reports stay away."""

KIND: Final = "simulated"
"""What all replicas compute with."""

Sharding: TypeAlias = Literal["hash", "tenant"]


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of one replica.

    Attributes:
        at: seconds from the load's beginning, >= 0.
        replica: which of those that serve then, the oldest being 0; nothing fails if there are
            fewer.
        kind: how.

    Raises:
        ValueError: for a value out of range.
    """

    at: float
    replica: int = 0
    kind: FailureKind = "crash"

    def __post_init__(self) -> None:
        _require(0 <= self.at < math.inf, "at", self.at, "a number of seconds from 0")
        _require(self.replica >= 0, "replica", self.replica, "a number from 0")
        _require(self.kind in ("crash", "silence"), "kind", self.kind, "crash or silence")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A deployment and what it meets. Times in seconds.

    Attributes:
        name: of the run.
        config: the settings of the server; ``num_blocks`` has to be given, since there is no
            memory to measure. Without ``max_model_len`` a sequence may fill a replica's pool.
        seed: decides everything that is left to chance.
        start_s: from the order for a replica until it serves.
        network_s: one way of one message, between any two parts.
        gateway_s: what a gateway does with a request before it asks the router.
        crowding: how many times as long a step takes that begins while all other replicas
            compute, for replicas that share one machine's cores with each other and with what
            carries their tokens; less in proportion while only some do. 1: nothing is shared.
        router_s: CPU time that the router takes for one message: a ticket, the end of one, a
            report. One is done after the other. 0: none.
        routers: so many share the work; each has a part of the replicas and of ``max_queued``.
        shard_by: whether requests are dealt out to the routers by chance, or by tenant.
        mtbf_s: mean time between failures of one replica, drawn from an exponential
            distribution; None: none fails but for ``failures``.
        mtbf_kind: how these fail.
        failures: those that are planned.
        retries: how often a client that is told to come back later does so, as the OpenAI SDK.
        first_token_s, end_s: a request is given up without its first, or its last, token; None
            is never.
        kv_bytes_per_token: of the model, for ``swap_gib``.
        sample_s: how often the fleet is looked at.

    Raises:
        ValueError: for the first value out of range.
    """

    name: str
    config: ServeConfig
    seed: int = 0
    start_s: float = 30.0
    network_s: float = 0.0005
    gateway_s: float = 0.001
    crowding: float = 1.0
    router_s: float = 0.0
    routers: int = 1
    shard_by: Sharding = "hash"
    mtbf_s: float | None = None
    mtbf_kind: FailureKind = "crash"
    failures: tuple[Failure, ...] = ()
    retries: int = 0
    first_token_s: float | None = None
    end_s: float | None = None
    kv_bytes_per_token: int | None = None
    sample_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("start_s", "network_s", "gateway_s", "router_s"):
            value = getattr(self, name)
            _require(0 <= value < math.inf, name, value, "a number of seconds from 0")
        for name in ("mtbf_s", "first_token_s", "end_s", "sample_s"):
            value = getattr(self, name)
            positive = value is None or 0 < value < math.inf
            _require(positive, name, value, "a number of seconds above 0")
        crowding = self.crowding
        _require(1 <= crowding < math.inf, "crowding", crowding, "a number from 1")
        _require(self.routers >= 1, "routers", self.routers, "a number from 1")
        _require(self.retries >= 0, "retries", self.retries, "a number from 0")
        _require(self.shard_by in ("hash", "tenant"), "shard_by", self.shard_by, "hash or tenant")
        kind = self.mtbf_kind
        _require(kind in ("crash", "silence"), "mtbf_kind", kind, "crash or silence")
        self._check_settings()

    def _check_settings(self) -> None:
        config = self.config
        blocks, size = config.num_blocks, self.kv_bytes_per_token
        _require(blocks is not None, "num_blocks", blocks, "given: no memory is there to measure")
        given = not config.swap_gib or (size is not None and size >= 1)
        limit = "a number of bytes from 1, for swap_gib"
        _require(given, "kv_bytes_per_token", size, limit)
        alone = self.routers == 1 or config.autoscaling == "off"
        _require(alone, "routers", self.routers, "1 with autoscaling")
        # Each would give a tenant its whole limits, and know a part of what it uses.
        alone = self.routers == 1 or (config.key_file is None and config.access is None)
        _require(alone, "routers", self.routers, "1 with a key file")
        fewest = config.replicas if config.autoscaling == "off" else self.routers
        limit = f"at most replicas, {fewest}"
        _require(self.routers <= fewest, "routers", self.routers, limit)

    @property
    def blocks(self) -> int:
        """Blocks of a replica's pool."""
        assert self.config.num_blocks is not None
        return self.config.num_blocks

    @property
    def max_model_len(self) -> int:
        """Longest sequence, in tokens."""
        return self.config.max_model_len or max(2, self.blocks * self.config.block_size)

    @property
    def context(self) -> int:
        """Tokens, prompt and answer together, above which gateways let no request in."""
        return min(self.max_model_len, self.blocks * self.config.block_size)

    @property
    def slots(self) -> int:
        """Blocks that a replica's host memory has room for."""
        if not self.config.swap_gib or self.kv_bytes_per_token is None:
            return 0
        return int(self.config.swap_gib * 2**30) // (
            self.kv_bytes_per_token * self.config.block_size
        )


def _require(ok: bool, name: str, value: object, limit: str) -> None:
    if not ok:
        raise ValueError(f"{name} must be {limit}, not {value!r}")
