"""Measured: what a replay brought."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from yarl import URL

from experiments.loads.load import Load
from experiments.replay.client import Tally
from experiments.replay.fleet import Fleet
from experiments.replay.manner import Manner
from experiments.replay.server import Server
from experiments.simulator.outcome import Outcome, Run, Setting


@dataclass(frozen=True, slots=True)
class Measured:
    """What a replay brought.

    Attributes:
        run: what came of the load; after an interruption, of the requests that were sent.
        tally: what the client saw.
        server: that answered.
        sent: requests, of all in the load.
    """

    run: Run
    tally: Tally
    server: Server
    sent: int


def measured_run(
    name: str,
    load: Load,
    url: URL,
    manner: Manner,
    server: Server,
    fleet: Fleet,
    tally: Tally,
    outcomes: Sequence[Outcome],
) -> Run:
    ends = [one.last_token_at for one in outcomes if one.last_token_at is not None]
    seconds = max([*ends, *(one.at for one in outcomes)], default=0.0)
    return Run(
        name=name,
        kind="measured",
        load=load.name,
        settings=_settings(load, url, manner, server, fleet, outcomes),
        outcomes=outcomes,
        samples=fleet.samples,
        seconds=seconds,
        replica_s=fleet.replica_s,
        busy_s=fleet.busy_s,
        counts=fleet.counts | _counts(tally),
    )


def _settings(
    load: Load,
    url: URL,
    manner: Manner,
    server: Server,
    fleet: Fleet,
    outcomes: Sequence[Outcome],
) -> dict[str, Setting]:
    sent = len(outcomes)
    return {
        "url": str(url).rstrip("/"),
        "model": server.model,
        "server version": server.version or None,
        "context": server.context,
        "prompts": "words" if manner.text else "token ids",
        "prompt_seed": manner.prompt_seed,
        "retries": manner.retries,
        "timeout_s": manner.timeout_s,
        "samples": "from /metrics" if fleet.samples else "none: no metrics of Tidegate's",
        **({} if sent == len(load.arrivals) else {"interrupted after": f"{sent} requests"}),
    }


def _counts(tally: Tally) -> dict[str, float]:
    late = sorted(tally.lateness_s)
    return {
        "retries": tally.retries,
        "short_answers": tally.short,
        "uncounted_answers": tally.uncounted,
        "lateness_p50_ms": round(1000 * quantile(late, 0.5), 3),
        "lateness_p99_ms": round(1000 * quantile(late, 0.99), 3),
        "lateness_max_ms": round(1000 * quantile(late, 1.0), 3),
    }


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that the share of all are not above; 0 for none."""
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
