"""A run as a page of Markdown, and as JSON."""

import dataclasses
import json

from experiments.peers.result import Run, Spread


def as_json(run: Run) -> str:
    """All that was found, sample by sample."""
    return json.dumps(dataclasses.asdict(run), indent=1, ensure_ascii=False) + "\n"


def as_markdown(run: Run, first: str, plot: str | None) -> str:
    """A page with one table, how the peers were set up, and where it was measured.

    Args:
        run: what was found.
        first: the peer that the others are compared with.
        plot: a picture to show, relative to the page.
    """
    lines = ["# This engine and its peers", "", *_facts(run), ""]
    lines += _table(run, first)
    lines += [
        "",
        "Medians over the rounds; in brackets the smallest and the largest. The last columns "
        "are medians of the ratios within a round: above 1, "
        f"{first} is faster, or its scheduler takes less. Greedy, the same token ids for all, new "
        "ones in every turn, prefills included.",
        "",
    ]
    if plot is not None:
        lines += [f"![Tokens a second of each peer at each load]({plot})", ""]
    lines += _peers(run)
    return "\n".join(lines)


def _facts(run: Run) -> list[str]:
    return [f"- {name}: {value}" for name, value in run.facts.items()]


def _table(run: Run, first: str) -> list[str]:
    names = list(run.versions)
    others = [name for name in names if name != first] if first in names else []
    head = ["", *names, *(f"against {other}" for other in others)]
    rows = [head, ["---"] * len(head)]
    for load in run.loads():
        rates = [_spread(run.rate(name, load)) for name in names]
        ratios = [_times(run.times_as_fast(first, other, load)) for other in others]
        rows.append([load, *rates, *ratios])
    for running in dict.fromkeys(sample.running for sample in run.schedulers):
        steps = [_spread(run.step(name, running)) for name in names]
        ratios = [_times(run.times_less(first, other, running)) for other in others]
        rows.append([f"scheduler, µs of CPU a step, {running} running", *steps, *ratios])
    if run.same_bits:
        equal = {found.peer: f"{found.equal} of {found.prompts}" for found in run.same_bits}
        bits = [equal.get(name, "-") for name in names]
        rows.append(["answers equal batched and alone", *bits, *([""] * len(others))])
    return ["| " + " | ".join(row) + " |" for row in rows]


def _peers(run: Run) -> list[str]:
    lines = []
    for name, versions in run.versions.items():
        parts = [", ".join(f"{package} {version}" for package, version in versions.items())]
        parts += run.notes.get(name, ())
        parts.append(f"at most {run.idle_share.get(name, 0.0):.0%} of a core in others' turns")
        lines.append(f"- {name}: {'; '.join(parts)}")
    lines += [f"- {name} was left out: {reason}" for name, reason in run.left_out.items()]
    return [*lines, ""]


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    low, median, high = (_number(x) for x in (spread.low, spread.median, spread.high))
    return median if low == high else f"{median} ({low} to {high})"


def _times(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
