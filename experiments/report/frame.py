"""Frames: outcomes, samples and summaries as CSV or Parquet, one row each."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from experiments.report.needs import Rows
from experiments.report.summary import Group, Summary, e2e_s
from experiments.simulator.outcome import Outcome, Run, Sample

Kind: TypeAlias = type[str] | type[int] | type[float]
Value: TypeAlias = str | int | float | None


@dataclass(frozen=True, slots=True)
class Frame:
    """A table of values.

    Attributes:
        name: of its file, without the ending.
        kinds: each column's type, in their order; a missing value is None.
        rows: a value for each column; may be read once only.
    """

    name: str
    kinds: Mapping[str, Kind]
    rows: Iterable[Sequence[Value]]


_OUTCOME: Final[Mapping[str, tuple[Kind, Callable[[Outcome], Value]]]] = {
    "index": (int, lambda o: o.index),
    "at": (float, lambda o: o.at),
    "priority": (int, lambda o: o.priority),
    "tenant": (str, lambda o: o.tenant),
    "prompt_tokens": (int, lambda o: o.prompt_tokens),
    "output_tokens": (int, lambda o: o.output_tokens),
    "status": (str, lambda o: o.status),
    "reason": (str, lambda o: o.reason),
    "placed_at": (float, lambda o: o.placed_at),
    "first_token_at": (float, lambda o: o.first_token_at),
    "last_token_at": (float, lambda o: o.last_token_at),
    "replica": (str, lambda o: o.replica),
    "attempts": (int, lambda o: o.attempts),
    "cached_tokens": (int, lambda o: o.cached_tokens),
    "longest_gap_s": (float, lambda o: o.longest_gap_s),
    "wait_s": (float, lambda o: o.wait_s),
    "ttft_s": (float, lambda o: o.ttft_s),
    "tpot_s": (float, lambda o: o.tpot_s),
    "e2e_s": (float, e2e_s),
}

_SAMPLE: Final[Mapping[str, Kind]] = {
    "at": float,
    "wanted": int,
    "serving": int,
    "starting": int,
    "queued": int,
    "oldest_wait_s": float,
    "waiting": int,
    "running": int,
    "free_blocks": int,
    "total_blocks": int,
}

_GROUP_COUNTS: Final = (
    "requests",
    "answered",
    "refused",
    "failed",
    "within",
    "moved",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
)
_GROUP_TIMES: Final = ("ttft_s", "tpot_s", "e2e_s", "wait_s", "gap_s")
_PARTS: Final = ("mean", "p50", "p90", "p99", "most")


def outcomes(runs: Sequence[Run]) -> Frame:
    """Each request of each run: what is in an `Outcome`, and the times that follow from it."""
    kinds = {name: kind for name, (kind, _) in _OUTCOME.items()}
    values = [value for _, value in _OUTCOME.values()]
    rows = ((run.name, *(value(o) for value in values)) for run in runs for o in run.outcomes)
    return Frame("outcomes", {"run": str, **kinds}, rows)


def samples(runs: Sequence[Run]) -> Frame:
    """Each sample of each run, as in a `Sample`."""

    def row(run: Run, sample: Sample) -> Sequence[Value]:
        return (run.name, *(getattr(sample, name) for name in _SAMPLE))

    rows = (row(run, sample) for run in runs for sample in run.samples)
    return Frame("samples", {"run": str, **_SAMPLE}, rows)


def summary(summaries: Sequence[Summary]) -> Frame:
    """Each run as a whole, by priority and by tenant; what the fleet cost stands with the whole."""
    kinds: dict[str, Kind] = {"run": str, "load": str, "kind": str, "group": str, "name": str}
    kinds |= dict.fromkeys(_GROUP_COUNTS, int)
    kinds |= {f"{time}_{part}": float for time in _GROUP_TIMES for part in _PARTS}
    costs: tuple[tuple[str, Kind], ...] = (
        ("seconds", float),
        ("replica_hours", float),
        ("busy_share", float),
        ("mean_replicas", float),
        ("most_replicas", int),
        ("most_queued", int),
        ("oldest_wait_s", float),
        ("most_waiting", int),
        ("most_used_share", float),
    )
    kinds |= dict(costs)

    def row(of: Summary, what: str, group: Group) -> Sequence[Value]:
        whole = what == "all"
        return (
            *(of.run, of.load, of.kind, what, group.name),
            *(getattr(group, name) for name in _GROUP_COUNTS),
            *(_part(group, time, part) for time in _GROUP_TIMES for part in _PARTS),
            *(getattr(of, name) if whole else None for name, _ in costs),
        )

    rows: list[Sequence[Value]] = []
    for of in summaries:
        rows.append(row(of, "all", of.all))
        rows += [row(of, "priority", group) for group in of.priorities]
        rows += [row(of, "tenant", group) for group in of.tenants]
    return Frame("summary", kinds, rows)


def _part(group: Group, time: str, part: str) -> float | None:
    spread: Any = getattr(group, time)
    return None if spread is None else getattr(spread, part)


def write(frame: Frame, folder: Path, format: Rows) -> Path:
    """Write the frame into the folder; returns the file.

    In CSV a missing value is empty, and a number has every digit that it takes to read the same
    back. Parquet needs polars.
    """
    file = folder / f"{frame.name}.{format}"
    if format == "csv":
        _write_csv(frame, file)
    else:
        _write_parquet(frame, file)
    return file


def _write_csv(frame: Frame, file: Path) -> None:
    # By hand: csv.writer leaves a lone carriage return unquoted where lines end without one.
    with file.open("w", encoding="utf-8", newline="") as stream:
        stream.write(",".join(frame.kinds) + "\n")
        kinds = list(frame.kinds.values())
        for row in frame.rows:
            stream.write(",".join(map(_cell, row, kinds)) + "\n")


def _cell(value: Value, kind: Kind) -> str:
    if value is None:
        return ""
    if kind is float:
        # A whole number in a column of fractions is written as one of these.
        return repr(float(value))
    text = str(value)
    if any(letter in text for letter in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _write_parquet(frame: Frame, file: Path) -> None:
    import polars

    types = {str: polars.String, int: polars.Int64, float: polars.Float64}
    schema = {name: types[kind] for name, kind in frame.kinds.items()}
    table = polars.DataFrame(list(frame.rows), schema=schema, orient="row")
    table.write_parquet(file)
