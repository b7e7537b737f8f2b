"""The screen of ``tidegate top``: a snapshot of ``GET /load`` in a terminal."""

from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from deployments.trend import Lately, Load

_FULL: Final = 0.9
_OLD_S: Final = 10.0
_TIDE, _WARN, _BAD, _GOOD = "cyan", "yellow", "red", "green"
_OVERHEAD: Final = 14  # lines of a screen that are not replicas
_ROWS: Final = 8


@dataclass(frozen=True, slots=True)
class _Meter:
    """A line as long as there is room, heavy as far as ``share`` goes; to be told without color."""

    share: float
    color: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        full = round(width * min(1.0, max(0.0, self.share)))
        yield Text("━" * full, self.color).append("─" * (width - full), "bright_black")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(4, options.max_width)


def duration(seconds: float | None) -> str:
    """Return a duration as a person reads it."""
    if seconds is None:
        return "-"
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 119.5 else f"{seconds / 60:.0f} min"


def number(value: float | None) -> str:
    """Return a whole number with commas between thousands."""
    return "-" if value is None else f"{value:,.0f}"


def screen(load: Load, lately: Lately, trouble: str, height: int | None = None) -> RenderableType:
    """Return what is shown.

    Args:
        load: the newest snapshot.
        lately: what the last minute was like.
        trouble: why there is no newer snapshot; empty if all is well.
        height: lines that there are; None shows every replica.
    """
    queue = load["queue"]
    room = None
    if height is not None:
        rows = min(_ROWS + 1, len(queue["by_priority"])) + min(_ROWS + 1, len(load["tenants"]))
        room = max(2, height - _OVERHEAD - rows)
    parts: list[RenderableType] = [
        _title(load["model"], trouble),
        Text(),
        _figures(load, lately),
        Text(),
        _replicas(load["replicas"], room),
        Text(),
        _queue(queue),
    ]
    if load["tenants"]:
        parts += [Text(), _tenants(load["tenants"])]
    return Group(*parts)


def alone(text: str) -> RenderableType:
    """Return what is shown as long as there was no snapshot at all."""
    return Group(_title("", text))


def _title(model: str, trouble: str) -> RenderableType:
    line = Table.grid(expand=True)
    line.add_column()
    line.add_column(justify="right")
    state = Text("● ", _BAD if trouble else _GOOD).append(trouble or "live", "default")
    line.add_row(Text("Tidegate", "bold").append(f"  {model}", "dim not bold"), state)
    return line


def _figures(load: Load, lately: Lately) -> RenderableType:
    replicas, queue = load["replicas"], load["queue"]
    total = _sum(replicas, "total_blocks")
    used = total - _sum(replicas, "free_blocks")
    running, waiting = _sum(replicas, "running"), queue["waiting"] + _sum(replicas, "waiting")
    figures = [
        ("running", number(running), f"of {number(_sum(replicas, 'max_running'))}"),
        ("waiting", number(waiting), f"oldest {duration(queue['oldest_s'])}"),
        ("KV blocks", f"{used / total:.0%}" if total else "-", f"{number(used)}/{number(total)}"),
        ("first token", duration(lately.ttft_p50), f"p90 {duration(lately.ttft_p90)}"),
        ("tokens/s", number(lately.tokens_per_s), ""),
        ("preemptions", number(lately.preemptions_per_min), "in a minute"),
    ]
    line = Table.grid(expand=True, padding=(0, 1))
    for _ in figures:
        line.add_column(no_wrap=True)
    line.add_row(*(Text(name, "dim") for name, _, _ in figures))
    line.add_row(*(Text(value, "bold") for _, value, _ in figures))
    line.add_row(*(Text(more, "dim") for _, _, more in figures))
    return line


def _replicas(replicas: list[dict[str, Any]], room: int | None) -> RenderableType:
    if not replicas:
        return Group(_rule("replicas"), Text("No replica serves.", _BAD))
    shown = replicas
    if room is not None and len(replicas) > room:
        shown = sorted(replicas, key=_share, reverse=True)[: room - 1]
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="dim not bold")
    table.add_column("replica", no_wrap=True, max_width=20)
    table.add_column("KV blocks", ratio=1)
    for name in ("used", "run", "wait", "preempted"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for one in shown:
        share = _share(one)
        used = one["total_blocks"] - one["free_blocks"]
        table.add_row(
            Text(one["replica"]),
            _Meter(share, _WARN if share >= _FULL else _TIDE),
            f"{number(used)}/{number(one['total_blocks'])}",
            number(one["running"]),
            number(one["waiting"]),
            number(one["preemptions"]),
            Text(one["state"], "dim" if one["state"] == "serving" else _WARN),
        )
    parts: list[RenderableType] = [_rule(_states(replicas)), table]
    if len(shown) < len(replicas):
        parts.append(Text(f"{len(replicas) - len(shown)} more, less full", "dim"))
    return Group(*parts)


def _queue(queue: dict[str, Any]) -> RenderableType:
    title = f"router's queue: {number(queue['waiting'])} of {number(queue['limit'])}"
    rule = _rule(title)
    if not queue["by_priority"]:
        return Group(rule, Text("Nobody waits.", "dim"))
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="dim not bold")
    table.add_column("priority", justify="right", width=8)
    table.add_column("", ratio=1)
    for name in ("waiting", "oldest"):
        table.add_column(name, justify="right", no_wrap=True)
    most = max(one["waiting"] for one in queue["by_priority"])
    for one in queue["by_priority"][:_ROWS]:
        table.add_row(
            f"{one['priority']:+d}" if one["priority"] else "0",
            _Meter(one["waiting"] / max(1, most), _TIDE),
            number(one["waiting"]),
            Text(duration(one["oldest_s"]), _WARN if one["oldest_s"] > _OLD_S else ""),
        )
    return Group(rule, table, *_more(queue["by_priority"], "lower priorities"))


def _tenants(tenants: list[dict[str, Any]]) -> RenderableType:
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="dim not bold")
    table.add_column("tenant", ratio=1, no_wrap=True)
    for name in ("share", "in flight", "waiting", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in tenants[:_ROWS]:
        limit = "" if one["max_in_flight"] is None else f"/{number(one['max_in_flight'])}"
        table.add_row(
            Text(one["tenant"] or "no name"),
            f"{one['share']:.0%}",
            f"{number(one['in_flight'])}{limit}",
            number(one["waiting"]),
            number(one["tokens"]),
        )
    rule = _rule("tenants")
    return Group(rule, table, *_more(tenants, "more"))


def _more(rows: list[dict[str, Any]], name: str) -> list[Text]:
    return [Text(f"{len(rows) - _ROWS} {name}", "dim")] if len(rows) > _ROWS else []


def _rule(title: str) -> Rule:
    return Rule(Text(title), align="left", style="bright_black")


def _states(replicas: list[dict[str, Any]]) -> str:
    counts = {
        state: sum(one["state"] == state for one in replicas)
        for state in ("serving", "leaving", "suspect")
    }
    return "replicas: " + ", ".join(f"{n} {state}" for state, n in counts.items() if n)


def _share(one: dict[str, Any]) -> float:
    total: int = one["total_blocks"]
    return 1 - one["free_blocks"] / total if total else 0.0


def _sum(replicas: list[dict[str, Any]], name: str) -> int:
    return sum(one[name] for one in replicas)
