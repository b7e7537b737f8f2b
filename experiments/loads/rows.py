"""Rows of a trace: its lines one by one, each knowing where it stands."""

import csv
import gzip
import io
import json
import math
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, TypeAlias

from experiments.loads.errors import TraceError
from experiments.loads.limits import LEAST_PRIORITY, MOST_PRIORITY, MOST_TOKENS

_SHOWN = 60  # characters of a value that an error repeats

Values: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a trace.

    Attributes:
        path: the file, for errors.
        line: from 1.
        values: by column or key; text in a table, JSON's types in JSON.
        header: the line that names the columns, in a table, where numbers are written as text.
    """

    path: str
    line: int
    values: Values
    header: int | None = None

    @property
    def table(self) -> bool:
        """Whether it is from a table."""
        return self.header is not None

    def error(self, field: str, limit: str) -> TraceError:
        """Return the error that a field's value is not what it must be."""
        said = shown(self.values[field]) if field in self.values else None
        return TraceError(self.path, self.line, field, said, limit)

    def tokens(self, field: str) -> int:
        """Return a length, from 1 to `MOST_TOKENS`.

        Raises:
            TraceError: it is not one.
        """
        return self._integer(field, 1, MOST_TOKENS)

    def priority(self, field: str) -> int:
        """Return a priority, from `LEAST_PRIORITY` to `MOST_PRIORITY`.

        Raises:
            TraceError: it is not one.
        """
        return self._integer(field, LEAST_PRIORITY, MOST_PRIORITY)

    def _integer(self, field: str, least: int, most: int) -> int:
        value = self.values[field]
        if self.table:
            value = _number(value, int)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(field, "an integer")
        if value < least:
            raise self.error(field, f"at least {least}")
        if value > most:
            raise self.error(field, f"at most {most}")
        return value

    def number(self, field: str) -> float:
        """Return a finite number.

        Raises:
            TraceError: it is not one.
        """
        value = self.values[field]
        if self.table:
            value = _number(value, float)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            raise self.error(field, "a number")
        return float(value)

    def text(self, field: str) -> str:
        """Return a text.

        Raises:
            TraceError: it is not one.
        """
        value = self.values[field]
        if not isinstance(value, str):
            raise self.error(field, "a text")
        return value

    def names(self, field: str) -> tuple[int, ...]:
        """Return a list of whole numbers from 0, in a table with spaces between them.

        Raises:
            TraceError: it is not one.
        """
        value = self.values[field]
        if self.table:
            value = [_number(one, int) for one in value.split()]
        if not isinstance(value, list) or any(
            isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in value
        ):
            raise self.error(field, "a list of integers that are at least 0")
        return tuple(value)

    def require(self, needed: Sequence[str], known: Collection[str]) -> None:
        """Check which fields there are.

        Raises:
            TraceError: one of ``needed`` is not there, or one is there that is not ``known``.
        """
        line = self.line if self.header is None else self.header
        for name in needed:
            if name not in self.values:
                raise TraceError(self.path, line, name, None, "there: it is missing")
        for name in self.values:
            if name not in known:
                limit = f"left out: known are {', '.join(known)}"
                raise TraceError(self.path, line, name, None, limit)


def shown(value: object) -> str:
    """Return a value as an error repeats it: on one line, and not all of a long one."""
    text = repr(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


@contextmanager
def opened(path: str) -> Iterator[IO[str]]:
    """Open a trace's text; gzip is seen by its first bytes, a byte order mark is left out.

    Raises:
        TraceError: while it is read: it is not there, no file, no UTF-8, or broken gzip.
    """
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            data = gzip.GzipFile(fileobj=raw) if packed else raw
            with io.TextIOWrapper(data, encoding="utf-8-sig", newline="") as text:
                yield text
    except OSError as error:  # gzip's own is one too
        limit = f"a file that can be read ({error.strerror or error})"
        raise TraceError(path, None, "", None, limit) from None
    except (EOFError, zlib.error) as error:
        raise TraceError(path, None, "", f"broken: {error}", "a whole gzip file") from None
    except UnicodeDecodeError as error:
        raise TraceError(path, None, "", f"broken: {error}", "UTF-8 text") from None


def first_line(path: str) -> tuple[int, str]:
    """Return the first line that is not empty, and its number.

    Raises:
        TraceError: there is none, or the file cannot be read.
    """
    with opened(path) as text:
        for number, line in enumerate(text, start=1):
            if line.strip():
                return number, line.strip()
    raise empty(path)


def empty(path: str) -> TraceError:
    """Return the error that a trace has no rows."""
    return TraceError(path, None, "", "empty", "a trace with at least one request")


def table_rows(path: str) -> Iterator[Row]:
    """Yield the rows of a comma-separated table, whose first line names the columns.

    Raises:
        TraceError: a column has no name or a name is there twice; a line has fewer or more fields
            than there are columns; the file cannot be read.
    """
    with opened(path) as text:
        reader = csv.reader(text, strict=True)
        columns: list[str] | None = None
        before = header = 0
        try:
            for fields in reader:
                line, before = before + 1, reader.line_num
                if not fields:
                    continue
                if columns is None:
                    header, columns = line, [field.strip() for field in fields]
                    if len(set(columns)) < len(columns):
                        limit = "columns of different names"
                        raise TraceError(path, line, "", shown(",".join(columns)), limit)
                elif len(fields) != len(columns):
                    limit = f"{len(columns)} fields, one for each column"
                    raise TraceError(path, line, "", f"{len(fields)}", limit)
                else:
                    yield Row(path, line, dict(zip(columns, fields, strict=True)), header)
        except csv.Error as error:
            raise TraceError(path, reader.line_num, "", str(error), "a line of a table") from None


def json_rows(path: str) -> Iterator[Row]:
    """Yield the rows of a file that has a JSON object on each line.

    Raises:
        TraceError: a line is not a JSON object; the file cannot be read.
    """
    with opened(path) as text:
        for number, line in enumerate(text, start=1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except (ValueError, RecursionError):
                values = None
            if not isinstance(values, dict):
                raise TraceError(path, number, "", shown(line.strip()), "a JSON object")
            yield Row(path, number, values)


def _number(text: str, kind: type[int] | type[float]) -> int | float | None:
    """Read a number as a table has it; not what Python's literals have besides, as ``1_000``."""
    try:
        return None if "_" in text else kind(text)
    except ValueError:
        return None


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False
