"""Traces: files that hold a load, in one of several formats, to be read and written."""

from collections.abc import Collection
from pathlib import Path
from typing import IO, Literal, TypeAlias, get_args

from experiments.loads import azure, mooncake, table
from experiments.loads.errors import TraceError
from experiments.loads.load import Arrival, Load
from experiments.loads.mooncake import AIPERF, GUIDELLM, MOONCAKE
from experiments.loads.order import at_least_one
from experiments.loads.rows import first_line, json_rows

Format: TypeAlias = Literal["azure", "mooncake", "aiperf", "guidellm", "csv"]
Written: TypeAlias = Literal["aiperf", "guidellm", "csv"]

FORMATS: tuple[Format, ...] = get_args(Format)
WRITTEN: tuple[Written, ...] = get_args(Written)

_DIALECTS = {"mooncake": MOONCAKE, "aiperf": AIPERF, "guidellm": GUIDELLM}


def read_trace(path: str, form: Format | None = None, piece_tokens: int | None = None) -> Load:
    """Read a load from a file, packed with gzip or not.

    Args:
        path: the file.
        form: how it is written; None: what its first line looks like. A line of three fields
            that Mooncake and guidellm both have counts as Mooncake's, in milliseconds.
        piece_tokens: length of each block that prompts begin with; None: what the file says, or
            512 as in Mooncake's traces.

    Raises:
        TraceError: the file cannot be read, a line is wrong, or there is no request.
    """
    form = form or format_of(path)
    arrivals: list[Arrival]
    size: int | None = None
    if form == "csv":
        arrivals, size = table.read(path)
    elif form == "azure":
        arrivals = list(azure.read(path))
    else:
        size = piece_tokens or mooncake.PIECE_TOKENS
        arrivals = list(mooncake.read(path, _DIALECTS[form], size))
    at_least_one(path, len(arrivals))
    return Load(Path(path).name, arrivals, piece_tokens or size or mooncake.PIECE_TOKENS)


def write_trace(load: Load, path: str, form: Written) -> None:
    """Write a load into a file, over what is there; the same load gives the same bytes.

    Raises:
        OSError: it cannot be written.
    """
    with open(path, "w", encoding="utf-8", newline="") as file:
        _write(load, file, form)


def _write(load: Load, file: IO[str], form: Written) -> None:
    if form == "csv":
        table.write(load, file)
    else:
        mooncake.write(load, file, _DIALECTS[form])


def format_of(path: str) -> Format:
    """Return how a file seems to be written.

    Raises:
        TraceError: none of the formats begins like this.
    """
    number, line = first_line(path)
    if line.startswith("{"):
        return _dialect(next(json_rows(path)).values)
    columns = [column.strip() for column in line.split(",")]
    if set(columns) & set(azure.COLUMNS):
        return "azure"
    if set(columns) & set(table.COLUMNS):
        return "csv"
    limit = (
        f"the columns {','.join(azure.COLUMNS)} or {','.join(table.NEEDED)}, or a JSON object "
        "on each line"
    )
    raise TraceError(path, number, "", repr(line[:60]), limit)


def _dialect(fields: Collection[str]) -> Format:
    """Return whose line it is, by the fields that the others do not have."""
    if "extra" in fields or "session_id" in fields or "type" in fields:
        return "aiperf"
    if "priority" in fields or "duration" in fields:
        return "guidellm"
    return "mooncake"
