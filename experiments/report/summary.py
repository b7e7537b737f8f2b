"""Summary: a run in a few dozen figures."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report.percentiles import Spread
from experiments.report.targets import Targets
from experiments.simulator.outcome import Outcome, Run, Status


@dataclass(frozen=True, slots=True)
class Group:
    """What came of some of a run's requests.

    Times are over the requests that were answered in full; `within` is over all.

    Attributes:
        name: of the group, such as a priority or a tenant.
        requests: how many there are: answered, refused and failed together.
        within: that met every target; one that was not answered in full met none.
        moved: that were placed on more than one replica; None for a measured run, since a live
            server does not tell.
        prompt_tokens: of the answered requests.
        cached_tokens: of these, found in a prefix cache.
        output_tokens: that clients got, those of answers that broke off included.
        ttft_s, tpot_s, e2e_s, wait_s: to the first token, per token after it, to the last token,
            until placed; in seconds; None if no request has one.
        gap_s: longest between two tokens of one answer, in seconds.
    """

    name: str
    requests: int
    answered: int
    refused: int
    failed: int
    within: int
    moved: int | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: Spread | None
    tpot_s: Spread | None
    e2e_s: Spread | None
    wait_s: Spread | None
    gap_s: Spread | None

    def share(self, count: int) -> float | None:
        """Return what part of the requests ``count`` is; None if there are none."""
        return count / self.requests if self.requests else None

    @property
    def missed_share(self) -> float | None:
        """Part of the requests that missed a target."""
        return self.share(self.requests - self.within)

    @property
    def cached_share(self) -> float | None:
        """Part of the prompts' tokens that were found in a prefix cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in figures.

    Attributes:
        run: its name.
        kind, load, seconds: as in the run.
        all: its requests.
        priorities: the same by priority, most urgent first.
        tenants: the same by tenant, by name.
        reasons: how many requests ended otherwise than answered, by how and why; most first.
        tokens_per_s: output tokens by the run's seconds; None for a run without time.
        replica_hours: that were paid for.
        busy_share: part of these in which a replica computed; None without replicas.
        mean_replicas: paid for, on average; None for a run without time.
        most_replicas, most_queued, oldest_wait_s, most_waiting: the highest of all samples;
            None without samples.
        most_used_share: of the blocks of replicas that serve, the highest of all samples.
        counts: as in the run.
    """

    run: str
    kind: str
    load: str
    seconds: float
    all: Group
    priorities: Sequence[Group]
    tenants: Sequence[Group]
    reasons: Mapping[tuple[Status, str], int]
    tokens_per_s: float | None
    replica_hours: float
    busy_share: float | None
    mean_replicas: float | None
    most_replicas: int | None
    most_queued: int | None
    oldest_wait_s: float | None
    most_waiting: int | None
    most_used_share: float | None
    counts: Mapping[str, float]


def summarise(run: Run, targets: Targets) -> Summary:
    """Return the run in figures."""

    def group(name: str, outcomes: Sequence[Outcome]) -> Group:
        return _group(name, outcomes, targets, tells_moves=run.kind == "simulated")

    everything = group("all", run.outcomes)
    priorities = _split(run.outcomes, lambda outcome: outcome.priority)
    tenants = _split(run.outcomes, lambda outcome: outcome.tenant)
    samples = run.samples
    used = [1 - s.free_blocks / s.total_blocks for s in samples if s.total_blocks]
    return Summary(
        run=run.name,
        kind=run.kind,
        load=run.load,
        seconds=run.seconds,
        all=everything,
        priorities=[group(str(key), priorities[key]) for key in sorted(priorities, reverse=True)],
        tenants=[group(key, tenants[key]) for key in sorted(tenants)],
        reasons=_reasons(run.outcomes),
        tokens_per_s=_ratio(everything.output_tokens, run.seconds),
        replica_hours=run.replica_s / 3600,
        busy_share=_ratio(run.busy_s, run.replica_s),
        mean_replicas=_ratio(run.replica_s, run.seconds),
        most_replicas=max((s.serving for s in samples), default=None),
        most_queued=max((s.queued for s in samples), default=None),
        oldest_wait_s=max((s.oldest_wait_s for s in samples), default=None),
        most_waiting=max((s.waiting for s in samples), default=None),
        most_used_share=max(used, default=None),
        counts=dict(run.counts),
    )


def _split(outcomes: Iterable[Outcome], key: Callable[[Outcome], Any]) -> dict[Any, list[Outcome]]:
    parts: dict[Hashable, list[Outcome]] = {}
    for outcome in outcomes:
        parts.setdefault(key(outcome), []).append(outcome)
    return parts


def _reasons(outcomes: Iterable[Outcome]) -> dict[tuple[Status, str], int]:
    found = Counter((one.status, one.reason) for one in outcomes if one.status != "ok")
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _group(name: str, outcomes: Sequence[Outcome], targets: Targets, *, tells_moves: bool) -> Group:
    answered = [outcome for outcome in outcomes if outcome.status == "ok"]
    return Group(
        name=name,
        requests=len(outcomes),
        answered=len(answered),
        refused=sum(outcome.status == "refused" for outcome in outcomes),
        failed=sum(outcome.status == "failed" for outcome in outcomes),
        within=sum(targets.met(outcome) for outcome in answered),
        moved=sum(outcome.attempts > 1 for outcome in outcomes) if tells_moves else None,
        prompt_tokens=sum(outcome.prompt_tokens for outcome in answered),
        cached_tokens=sum(outcome.cached_tokens for outcome in answered),
        output_tokens=sum(outcome.output_tokens for outcome in outcomes),
        ttft_s=Spread.of(outcome.ttft_s for outcome in answered),
        tpot_s=Spread.of(outcome.tpot_s for outcome in answered),
        e2e_s=Spread.of(e2e_s(outcome) for outcome in answered),
        wait_s=Spread.of(outcome.wait_s for outcome in answered),
        gap_s=Spread.of(outcome.longest_gap_s for outcome in answered if outcome.output_tokens > 1),
    )


def e2e_s(outcome: Outcome) -> float | None:
    """Return the time to the last token; None if it never came."""
    return None if outcome.last_token_at is None else outcome.last_token_at - outcome.at


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
