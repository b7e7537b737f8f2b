"""Options of a command line that say what a load is simulated on."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from deployments.flags import add_settings
from deployments.own_policies import split
from deployments.settings import PLACEMENTS
from experiments.arguments import number, whole
from experiments.policies import SPECS
from experiments.simulator.scenario import Failure

SETTINGS: Final = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "prefill_chunk",
    "target_tpot_ms",
    "block_size",
    "num_blocks",
    "overlap",
    "swap_gib",
    "max_waiting",
    "prefix_cache",
    "prefix_cache_scope",
    "aging_seconds",
    "max_priority",
    "fair_tenants",
    "key_file",
    "gateways",
    "affinity_slack",
    "max_queued",
    "lookahead",
    "admission_preemption",
    "max_admission_preemptions",
    "max_passes",
    "target_utilization",
    "target_wait_s",
    "target_ttft_s",
    "scale_up_cooldown_s",
    "scale_down_cooldown_s",
    "scale_to_zero_s",
    "report_interval_s",
    "heartbeat_s",
    "silent_s",
    "hold_s",
    "drain_s",
)
"""Settings of ``tidegate serve`` that a simulation heeds, each given once. Those that are compared
have options of their own; all others change nothing in a simulation, so it does not take them."""

_NOTES: Final = {
    "overlap": "In a simulation it only costs: who comes waits a step longer, and steps take what "
    "--step-time says all the same, which has no part that could be hidden.",
    "gateways": "In a simulation they are never busy, and are told apart where each tells the "
    "router of all requests that ended meanwhile in one message.",
}

SURROUNDINGS: Final = (
    "seed",
    "start_s",
    "network_s",
    "gateway_s",
    "crowding",
    "router_s",
    "routers",
    "shard_by",
    "sample_s",
    "mtbf_s",
    "mtbf_kind",
    "failures",
    "kv_bytes_per_token",
    "retries",
    "first_token_s",
    "end_s",
)
"""Fields of a `Scenario` that options give."""

STEP_TIME: Final = "llama-8b@h100-sxm"
SCHEDULINGS: Final = ("fcfs", "strict", "priority")

_MOST_REPLICAS: Final = 1024
_ROUTERS: Final = f"{', '.join((*PLACEMENTS, *SPECS))}, module:Class or file.py:Class"


@dataclass(frozen=True, slots=True)
class Count:
    """How many replicas: from ``low`` to ``high``, as a policy decides.

    Attributes:
        low, high: at least 1 and at most 1,024; ``low`` can be 0 if ``high`` is not.
        fixed: it is one number, ``low``, and nothing decides.
    """

    low: int
    high: int
    fixed: bool

    def __str__(self) -> str:
        return str(self.low) if self.fixed else f"{self.low}..{self.high}"


def add_fleet_options(parser: argparse.ArgumentParser) -> None:
    """Give a command the options that `simulations_of` reads, but for those of clients."""
    _add_compared(
        parser.add_argument_group("compared", "Each combination of these is a run of its own.")
    )
    _add_surroundings(parser.add_argument_group("what it runs on"))
    add_settings(
        parser.add_argument_group("settings of the server", "They mean what they mean to serve."),
        SETTINGS,
        _NOTES,
    )


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Give a command the options that say what simulated clients do."""
    group = parser.add_argument_group("clients")
    group.add_argument(
        "--retries",
        type=whole(0, 1000),
        default=0,
        metavar="N",
        help="times that a request comes again, as the openai SDK sends it: after 429, 5xx or "
        "when its connection breaks, unless it is told not to, or to wait for over two minutes; "
        "default 0",
    )
    for flag, field, what in (
        ("--first-token-within", "first_token_s", "without its first token"),
        ("--end-within", "end_s", "that has not ended"),
    ):
        group.add_argument(
            flag,
            dest=field,
            type=number(1e-3, 1e6),
            metavar="S",
            help=f"give up a request {what} by then; default: never",
        )


def _add_compared(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--replicas",
        nargs="+",
        type=_counts,
        default=[[Count(2, 2, fixed=True)]],
        metavar="LIST",
        help="8; or 4,8,16: one run each; or 4..64: as a --policy decides; default 2",
    )
    group.add_argument(
        "--policy",
        "--autoscaling",
        nargs="+",
        metavar="NAME",
        help="between bounds such as 4..64: blocks, wait, ttft, module:Class or file.py:Class; "
        "default blocks",
    )
    group.add_argument(
        "--router",
        "--placement",
        nargs="+",
        type=_router,
        default=["most_free_blocks"],
        metavar="NAME",
        help=f"{_ROUTERS}; default most_free_blocks",
    )
    group.add_argument(
        "--scheduling",
        "--scheduling-policy",
        nargs="+",
        choices=SCHEDULINGS,
        default=["priority"],
        help="fcfs; strict: by priority alone; priority (default): with aging",
    )


def _add_surroundings(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--step-time",
        default=STEP_TIME,
        metavar="SPEC",
        help="how long a step takes: a FILE.json or FILE.csv, or from data sheets MODEL@DEVICE or "
        f"MODEL@4xDEVICE; default {STEP_TIME}",
    )
    group.add_argument(
        "--kv-bytes-per-token",
        type=whole(1, 10**9),
        metavar="N",
        help="for --swap-gib; default: the model's, if --step-time names one",
    )
    for flag, field, per_second, what in (
        ("--start-up", "start_s", 1, "seconds until a new replica serves; default 30"),
        ("--network-ms", "network_s", 1e3, "milliseconds of a message, one way; default 0.5"),
        ("--gateway-ms", "gateway_s", 1e3, "milliseconds of a gateway for a request; default 1"),
        ("--router-us", "router_s", 1e6, "microseconds of the router for a message; default 0"),
    ):
        group.add_argument(flag, dest=field, type=_times(per_second), metavar="N", help=what)
    group.add_argument(
        "--crowding",
        type=number(1, 1e3),
        metavar="X",
        help="a step takes so many times as long while all other replicas compute, on the same "
        "machine; default 1",
    )
    group.add_argument("--routers", type=whole(1, 1024), metavar="N", help="that share the work")
    group.add_argument(
        "--shard-by", choices=("hash", "tenant"), help="how requests go to them; default hash"
    )
    group.add_argument(
        "--mtbf",
        dest="mtbf_s",
        type=number(1e-3, 1e9),
        metavar="S",
        help="mean seconds between two failures of a replica; default: none fails",
    )
    group.add_argument(
        "--mtbf-kind", choices=("crash", "silence"), help="how they fail; default crash"
    )
    group.add_argument(
        "--fail",
        dest="failures",
        type=_failure,
        action="append",
        metavar="S[:N[:KIND]]",
        help="let replica N (the oldest is 0, the default) fail then: crash (default) or silence",
    )
    group.add_argument(
        "--sample",
        dest="sample_s",
        type=number(1e-3, 1e6),
        metavar="S",
        help="seconds between two looks at the fleet; default 1",
    )


def _times(per_second: float) -> Callable[[str], float]:
    read = number(0, 1e6)
    return lambda text: read(text) / per_second


def _counts(text: str) -> list[Count]:
    return list(dict.fromkeys(_count(part.strip()) for part in text.split(",")))


def _count(text: str) -> Count:
    first, bounds, last = text.partition("..")
    if not bounds:
        count = whole(1, _MOST_REPLICAS)(text)
        return Count(count, count, fixed=True)
    low, high = whole(0, _MOST_REPLICAS)(first), whole(1, _MOST_REPLICAS)(last)
    if low > high:
        raise argparse.ArgumentTypeError(f"must have its lower bound first, not {text!r}")
    return Count(low, high, fixed=False)


def _router(text: str) -> str:
    if text not in PLACEMENTS and text not in SPECS and split(text) is None:
        raise argparse.ArgumentTypeError(f"must be {_ROUTERS}, not {text!r}")
    return text


def _failure(text: str) -> Failure:
    at, _, rest = text.partition(":")
    replica, _, kind = rest.partition(":")
    try:
        return Failure(float(at), int(replica or 0), kind or "crash")  # type: ignore[arg-type]
    except ValueError:
        limit = "S, S:N or S:N:crash or silence, with S and N from 0"
        raise argparse.ArgumentTypeError(f"must be {limit}, not {text!r}") from None
