"""The tables of a report."""

from collections.abc import Callable, Sequence

from experiments.report.percentiles import Spread
from experiments.report.summary import Group, Summary
from experiments.report.table import Column, Table
from experiments.report.targets import Targets
from experiments.report.texts import NOTHING, count, milliseconds, number, setting, share
from experiments.simulator.outcome import Run

_MOST_GROUPS = 20
_MOST_REASONS = 20
_RUN = Column("Run", text=True)


def overview(summaries: Sequence[Summary], targets: Targets) -> Table:
    """Each run in one row: how well it served, and what it cost."""
    columns = [
        _RUN,
        Column("Requests", minor=True),
        Column("Answered"),
        Column("On target"),
        Column("TTFT p50", "s"),
        Column("p90", "s"),
        Column("p99", "s"),
        Column("TPOT p50", "ms"),
        Column("p90", "ms", minor=True),
        Column("Tokens/s", minor=True),
        Column("Replica-hours"),
        Column("Busy", minor=True),
    ]
    rows = []
    for summary in summaries:
        group, ttft, tpot = summary.all, summary.all.ttft_s, summary.all.tpot_s
        rows.append(
            [
                summary.run,
                count(group.requests),
                share(group.share(group.answered)),
                share(group.share(group.within)),
                *(number(_part(ttft, name)) for name in ("p50", "p90", "p99")),
                *(milliseconds(_part(tpot, name)) for name in ("p50", "p90")),
                number(summary.tokens_per_s),
                number(summary.replica_hours),
                share(summary.busy_share),
            ]
        )
    note = (
        f"On target: {targets}; requests that were refused or failed missed it. TTFT: time to "
        "first token; TPOT: time per output token after it."
    )
    return Table("Overview", columns, rows, note)


def reasons(summaries: Sequence[Summary]) -> Table | None:
    """Why requests of each run were refused or failed; None if none was."""
    columns = [
        _RUN,
        Column("Ended", text=True),
        Column("Requests"),
        Column("Share"),
        Column("Reason", text=True),
    ]
    rows = [
        [summary.run, status, count(many), share(summary.all.share(many)), reason or NOTHING]
        for summary in summaries
        for (status, reason), many in list(summary.reasons.items())[:_MOST_REASONS]
    ]
    if not rows:
        return None
    note = "Reason: an error's type and code, as in the API. Share: of all requests of the run."
    left_out = max(len(summary.reasons) for summary in summaries) - _MOST_REASONS
    if left_out > 0:
        note += f" The {_MOST_REASONS} most frequent of each run; up to {left_out} more."
    return Table("Why requests were refused or failed", columns, rows, note)


def requests(summaries: Sequence[Summary]) -> Table:
    """How each run's requests ended, and their tokens."""
    columns = [
        _RUN,
        Column("Requests"),
        Column("Answered"),
        Column("Refused"),
        Column("Failed"),
        Column("Moved"),
        Column("Prompt tokens"),
        Column("Cached"),
        Column("Output tokens"),
        Column("Tokens/s"),
        Column("Time", "s"),
    ]
    rows = []
    for summary in summaries:
        group = summary.all
        ends = (group.requests, group.answered, group.refused, group.failed, group.moved)
        rows.append(
            [
                summary.run,
                *map(count, ends),
                count(group.prompt_tokens),
                share(group.cached_share),
                count(group.output_tokens),
                number(summary.tokens_per_s),
                number(summary.seconds),
            ]
        )
    note = (
        "Moved: placed on more than one replica; a live server does not tell. Prompt tokens are "
        "those of answered requests, output tokens all that clients got. Time: until the last "
        "answer's end."
    )
    return Table("Requests and tokens", columns, rows, note)


def latencies(summaries: Sequence[Summary]) -> Table:
    """Every kind of time of each run."""
    columns = [
        _RUN,
        Column("Time", text=True),
        Column("Requests"),
        Column("Mean"),
        Column("p50"),
        Column("p90"),
        Column("p99"),
        Column("Max"),
    ]
    rows = []
    for summary in summaries:
        group = summary.all
        kinds: Sequence[tuple[str, Spread | None, Callable[[float | None], str]]] = (
            ("wait, s", group.wait_s, number),
            ("to first token, s", group.ttft_s, number),
            ("per output token, ms", group.tpot_s, milliseconds),
            ("longest gap, ms", group.gap_s, milliseconds),
            ("to last token, s", group.e2e_s, number),
        )
        for kind, spread, text in kinds:
            if spread is not None:
                parts = (spread.mean, spread.p50, spread.p90, spread.p99, spread.most)
                rows.append([summary.run, kind, count(spread.count), *map(text, parts)])
    note = (
        "Of requests that were answered in full. Wait: from when the request was to be sent until "
        "it was placed on a replica. Percentiles by nearest rank."
    )
    return Table("Times", columns, rows, note)


def by_priority(summaries: Sequence[Summary]) -> Table | None:
    """Each priority of each run; None if no run has more than one."""
    return _groups("By priority", "Priority", summaries, lambda summary: summary.priorities)


def by_tenant(summaries: Sequence[Summary]) -> Table | None:
    """Each tenant of each run, the busiest first; None if no run has more than one."""

    def busiest(summary: Summary) -> Sequence[Group]:
        return sorted(summary.tenants, key=lambda group: (-group.requests, group.name))

    return _groups("By tenant", "Tenant", summaries, busiest)


def _groups(
    title: str, what: str, summaries: Sequence[Summary], of: Callable[[Summary], Sequence[Group]]
) -> Table | None:
    if not any(len(of(summary)) > 1 for summary in summaries):
        return None
    columns = [
        _RUN,
        Column(what, text=True),
        Column("Requests", minor=True),
        Column("Answered", minor=True),
        Column("On target"),
        Column("TTFT p50", "s"),
        Column("p90", "s"),
        Column("p99", "s"),
        Column("max", "s"),
        Column("TPOT p50", "ms", minor=True),
        Column("Longest wait", "s", minor=True),
        Column("Output tokens", minor=True),
    ]
    rows = []
    for summary in summaries:
        for group in of(summary)[:_MOST_GROUPS]:
            ttft = (_part(group.ttft_s, name) for name in ("p50", "p90", "p99", "most"))
            rows.append(
                [
                    summary.run,
                    group.name or NOTHING,
                    count(group.requests),
                    share(group.share(group.answered)),
                    share(group.share(group.within)),
                    *map(number, ttft),
                    milliseconds(_part(group.tpot_s, "p50")),
                    number(_part(group.wait_s, "most")),
                    count(group.output_tokens),
                ]
            )
    left_out = max(len(of(summary)) for summary in summaries) - _MOST_GROUPS
    note = f"The first {_MOST_GROUPS} of each run; up to {left_out} more." if left_out > 0 else ""
    return Table(title, columns, rows, note)


def fleet(summaries: Sequence[Summary]) -> Table:
    """What each run's fleet was, and how full it got."""
    columns = [
        _RUN,
        Column("Replicas, mean"),
        Column("most"),
        Column("Replica-hours"),
        Column("Busy"),
        Column("Blocks used, most"),
        Column("Queued, most"),
        Column("Oldest wait", "s"),
        Column("Waiting in replicas, most"),
    ]
    rows = [
        [
            summary.run,
            number(summary.mean_replicas),
            count(summary.most_replicas),
            number(summary.replica_hours),
            share(summary.busy_share),
            share(summary.most_used_share),
            count(summary.most_queued),
            number(summary.oldest_wait_s),
            count(summary.most_waiting),
        ]
        for summary in summaries
    ]
    note = (
        "Replicas that start are paid for. Busy: the part of what was paid for in which a replica "
        "computed. What was most is the highest of all samples."
    )
    return Table("Fleet", columns, rows, note)


def counts(summaries: Sequence[Summary]) -> Table | None:
    """What was counted in each run; None if nothing was."""
    names = list(dict.fromkeys(name for summary in summaries for name in summary.counts))
    if not names:
        return None
    columns = [Column("Count", text=True), *(Column(summary.run) for summary in summaries)]
    rows = [
        [name.replace("_", " "), *(count(summary.counts.get(name)) for summary in summaries)]
        for name in names
    ]
    return Table("Counts", columns, rows)


def settings(runs: Sequence[Run]) -> tuple[Table, Table | None]:
    """Return the settings that all runs share, and those in which they differ, if they do."""
    names = list(dict.fromkeys(name for run in runs for name in run.settings))
    values = {name: [_setting(run, name) for run in runs] for name in names}
    same = [name for name in names if len(set(values[name])) == 1]
    differ = [name for name in names if name not in same]
    common = Table(
        "Settings of all runs" if len(runs) > 1 else "Settings",
        [Column("Setting", text=True), Column("Value", text=True)],
        [[name, values[name][0]] for name in same],
    )
    if not differ:
        return common, None
    columns = [_RUN, *(Column(name, text=True) for name in differ)]
    rows = [[run.name, *(values[name][i] for name in differ)] for i, run in enumerate(runs)]
    return common, Table("Settings that differ", columns, rows)


def _setting(run: Run, name: str) -> str:
    return setting(run.settings[name]) if name in run.settings else NOTHING


def _part(spread: Spread | None, name: str) -> float | None:
    return None if spread is None else getattr(spread, name)
