"""Records: runs written into a folder, and read back from it."""

import csv
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from experiments.report import frame
from experiments.report.frame import Frame, Kind
from experiments.report.needs import Rows, require
from experiments.simulator.outcome import Outcome, Run, Sample

_RUNS: Final = "runs.json"
_ROWS: Final = ("outcomes", "samples")


class RecordError(ValueError):
    """A folder does not hold what a report writes; the message names the file and the fault."""


def write_record(runs: Sequence[Run], folder: Path, formats: Collection[Rows]) -> list[Path]:
    """Write all that is known of the runs; returns the files.

    What there is once for each run goes into ``runs.json``, outcomes and samples into a file of
    each of the formats.
    """
    names = [field.name for field in fields(Run) if field.name not in _ROWS]
    once = [{name: _json(getattr(run, name)) for name in names} for run in runs]
    file = folder / _RUNS
    file.write_text(json.dumps(once, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    frames = [make(runs) for make in (frame.outcomes, frame.samples) for _ in formats]
    return [
        file,
        *(frame.write(f, folder, to) for f, to in zip(frames, [*formats] * 2, strict=True)),
    ]


def read_runs(folder: Path) -> list[Run]:
    """Read back the runs of a report that was written with CSV or Parquet files.

    Raises:
        RecordError: a file is missing or is not what a report writes.
        MissingLibrary: there is Parquet only, and nothing that reads it.
    """
    file = folder / _RUNS
    if not file.is_file():
        raise RecordError(f"{file} is missing: {folder} holds no report with CSV or Parquet files")
    try:
        once = list(json.loads(file.read_text(encoding="utf-8")))
        names = [str(run["name"]) for run in once]
        outcomes = _rows(folder, frame.outcomes(()), names, Outcome)
        samples = _rows(folder, frame.samples(()), names, Sample)
        return [
            Run(**run, outcomes=outcomes[name], samples=samples[name])
            for name, run in zip(names, once, strict=True)
        ]
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"{file} is not what a report writes: {error!r}") from error


def _json(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _rows(
    folder: Path, shape: Frame, names: Sequence[str], kind: type[Any]
) -> dict[str, list[Any]]:
    """Return what was written of each run, as objects of this kind."""
    wanted = [field.name for field in fields(kind)]
    found: dict[str, list[Any]] = {name: [] for name in names}
    files = [folder / f"{shape.name}.{ending}" for ending in ("csv", "parquet")]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise RecordError(f"{files[0]} is missing, and so is {files[1].name}")
    rows = _csv_rows(file, shape) if file.suffix == ".csv" else _parquet_rows(file)
    for number, row in rows:
        try:
            found[row["run"]].append(kind(**{name: row[name] for name in wanted}))
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(
                f"{file}, row {number}: not what a report writes: {error!r}"
            ) from error
    return found


def _csv_rows(file: Path, shape: Frame) -> Iterator[tuple[int, dict[str, Any]]]:
    with file.open(encoding="utf-8", newline="") as stream:
        for number, texts in enumerate(csv.DictReader(stream, strict=True), 1):
            try:
                row = {name: _value(kind, texts[name]) for name, kind in shape.kinds.items()}
            except (KeyError, TypeError, ValueError) as error:
                raise RecordError(f"{file}, row {number}: {error!r}") from error
            yield number, row


def _value(kind: Kind, text: str) -> str | int | float | None:
    return None if text == "" and kind is not str else kind(text)


def _parquet_rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    require(["parquet"])
    import polars

    return enumerate(polars.read_parquet(file).iter_rows(named=True), 1)
