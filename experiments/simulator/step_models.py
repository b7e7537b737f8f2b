"""Step-time models by name or file, and how they are written down.

What a model can be:

- a JSON file of kind ``fitted``, as `experiments.simulator.fit` writes it;
- a JSON file of kind ``table``, or a CSV file of a table;
- ``MODEL@DEVICE`` or ``MODEL@NxDEVICE``, such as ``llama-70b@4xh100-sxm``: a roofline's estimate.
  MODEL is one of the names in `roofline.SHAPES`, or a folder with a config.json.
"""

import csv
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from experiments.loads.rows import shown
from experiments.simulator.fitted import Fitted
from experiments.simulator.roofline import DEVICES, SHAPES, Roofline, Shape
from experiments.simulator.step_time import StepTime
from experiments.simulator.time_table import AXES, TimeTable

About: TypeAlias = Mapping[str, str | int | float | None]
COLUMNS: Final = (*AXES, "milliseconds")
_SCALARS: Final = ("fixed", "decode", "pair", "context", "copy", "copy_block")
_MOST: Final = 10**12  # tokens or sequences; far above them a number no longer fits a float
_GPUS: Final = re.compile(r"(?:(\d+)x)?(.+)")


class StepTimeError(ValueError):
    """A step-time model cannot be had; the message names the file or name and what is wrong."""


@dataclass(frozen=True, slots=True)
class Described:
    """A model of step times, and what it is.

    Attributes:
        time: the model.
        what: one line for a report; estimates are called that.
    """

    time: StepTime
    what: str


def load_step_time(spec: str) -> StepTime:
    """Return the model that ``spec`` names, as the module says.

    Raises:
        StepTimeError: there is none, or its file is broken.
    """
    return load_described(spec).time


def load_described(spec: str) -> Described:
    """As `load_step_time`, with a line that says what the model is.

    Raises:
        StepTimeError: as there.
    """
    path = Path(spec)
    if path.suffix in (".json", ".csv"):
        if not path.is_file():
            raise StepTimeError(f"{spec}: there is no such file")
        return _read_json(path) if path.suffix == ".json" else _read_csv(path)
    model, at, devices = spec.rpartition("@")
    if not at:
        raise StepTimeError(
            f"{spec!r} is no model of step times: a .json or .csv file, or MODEL@DEVICE "
            f"with MODEL a folder or one of {', '.join(SHAPES)} "
            f"and DEVICE one of {', '.join(DEVICES)}"
        )
    return _roofline(spec, model, devices)


def fitted_json(model: Fitted, about: About) -> str:
    """Return a fitted model as the text of a file, with what it was measured on."""
    values = {name: getattr(model, name) for name in _SCALARS}
    shape = {"knots": list(model.knots), "slopes": list(model.slopes)}
    return _text({"kind": "fitted", **values, **shape, "about": dict(about)})


def table_json(table: TimeTable, about: About) -> str:
    """Return a table as the text of a file, with where it is from."""
    axes = {name: list(getattr(table, name)) for name in AXES}
    last = len(table.context)
    rows = [list(table.milliseconds[i : i + last]) for i in range(0, len(table.milliseconds), last)]
    per = len(table.decodes)
    grid = [rows[i : i + per] for i in range(0, len(rows), per)]
    extra = {"pair_ms": table.pair_ms, "copy_block_ms": table.copy_block_ms}
    return _text({"kind": "table", **axes, "milliseconds": grid, **extra, "about": dict(about)})


def shape_of(folder: Path) -> Shape:
    """Return the shape of the model in a folder, read from its config.json alone.

    Raises:
        StepTimeError: a size is missing or is no number.
    """
    file = folder / "config.json"
    config = _object(file)

    def size(name: str, default: int | None = None) -> int:
        value = config.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise StepTimeError(f"{file}: {name} is {value!r}: a number from 1 is needed")
        return value

    heads, hidden = size("num_attention_heads"), size("hidden_size")
    return Shape(
        size("num_hidden_layers"),
        hidden,
        size("intermediate_size"),
        size("vocab_size"),
        heads,
        size("num_key_value_heads", heads),
        size("head_dim", max(1, hidden // heads)),
    )


def _roofline(spec: str, model: str, devices: str) -> Described:
    found = _GPUS.fullmatch(devices)
    count, name = (found[1] or "1", found[2]) if found else ("1", devices)
    if name not in DEVICES:
        raise StepTimeError(f"{spec!r}: the device is {name!r}, not one of {', '.join(DEVICES)}")
    shape = SHAPES.get(model)
    if shape is None and (Path(model) / "config.json").is_file():
        shape = shape_of(Path(model))
    if shape is None:
        known = ", ".join(SHAPES)
        raise StepTimeError(f"{spec!r}: the model is {model!r}, not a folder, nor one of {known}")
    if int(count) < 1:
        raise StepTimeError(f"{spec!r}: the number of GPUs is {count}, not 1 or more")
    what = f"an estimate from data sheets, not measured: {model} on {count} {name} a replica"
    return Described(Roofline(shape, DEVICES[name], int(count)), what)


def _read_json(path: Path) -> Described:
    values = _object(path)
    kinds: dict[Any, Callable[[_Fields], StepTime]] = {"fitted": _fitted, "table": _table}
    kind = values.pop("kind", None)
    if kind not in kinds:
        raise StepTimeError(f"{path}: kind is {kind!r}, not fitted or table")
    about = values.pop("about", {})
    if not isinstance(about, dict):
        raise StepTimeError(f"{path}: about is {about!r}, not an object")
    fields = _Fields(path, values)
    try:
        time = kinds[kind](fields)
    except StepTimeError:
        raise
    except ValueError as error:
        raise StepTimeError(f"{path}: {error}") from None
    fields.no_more()
    told = ", ".join(f"{name} {value}" for name, value in about.items() if value is not None)
    return Described(time, f"{kind}, {path.name}" + (f": {told}" if told else ""))


def _fitted(fields: "_Fields") -> Fitted:
    knots = tuple(fields.whole(value, "knots") for value in fields.items("knots"))
    slopes = tuple(fields.number(value, "slopes") for value in fields.items("slopes"))
    named = {
        name: fields.number(fields.take(name, 0.0 if name.startswith("copy") else None), name)
        for name in _SCALARS
    }
    return Fitted(knots=knots, slopes=slopes, **named)


def _table(fields: "_Fields") -> TimeTable:
    prefill, decodes, context = (
        tuple(fields.whole(value, name) for value in fields.items(name)) for name in AXES
    )
    flat: list[float] = []
    planes = fields.sized(fields.items("milliseconds"), len(prefill), "milliseconds")
    for i, plane in enumerate(planes):
        for j, row in enumerate(fields.sized(plane, len(decodes), f"milliseconds[{i}]")):
            at = f"milliseconds[{i}][{j}]"
            flat += [fields.number(value, at) for value in fields.sized(row, len(context), at)]
    pair, copy = (fields.number(fields.take(k, 0.0), k) for k in ("pair_ms", "copy_block_ms"))
    return TimeTable(prefill, decodes, context, tuple(flat), pair, copy)


def _read_csv(path: Path) -> Described:
    """Read a table whose rows are nodes in any order: every combination exactly once."""
    cells = _cells(path)
    axes = [tuple(sorted({node[i] for node in cells})) for i in range(3)]
    nodes = [(p, d, c) for p in axes[0] for d in axes[1] for c in axes[2]]
    for node in nodes:
        if node not in cells:
            raise StepTimeError(f"{path}: the row of {_told(node)} is missing")
    try:
        table = TimeTable(axes[0], axes[1], axes[2], tuple(cells[node] for node in nodes))
    except ValueError as error:
        raise StepTimeError(f"{path}: {error}") from None
    return Described(table, f"table, {path.name}")


def _cells(path: Path) -> dict[tuple[int, int, int], float]:
    """Read the milliseconds of each node."""
    cells: dict[tuple[int, int, int], float] = {}
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        try:
            header = tuple(name.strip() for name in next(reader, []))
            if header != COLUMNS:
                said, wanted = shown(",".join(header)), ",".join(COLUMNS)
                raise StepTimeError(f"{path}:1: the columns are {said}, not {wanted}")
            for row in reader:
                if row:
                    _add(cells, row, f"{path}:{reader.line_num}")
        except csv.Error as error:
            raise StepTimeError(f"{path}:{reader.line_num}: {error}") from None
        except UnicodeDecodeError as error:
            # Text is decoded in blocks: how far the reader was says nothing.
            raise StepTimeError(f"{path}: is not UTF-8 text: {error}") from None
    return cells


def _add(cells: dict[tuple[int, int, int], float], row: list[str], at: str) -> None:
    if len(row) != len(COLUMNS):
        raise StepTimeError(f"{at}: {len(row)} values, not {len(COLUMNS)}")
    try:
        node, value = (int(row[0]), int(row[1]), int(row[2])), float(row[3])
    except ValueError:
        said = shown(",".join(row))
        raise StepTimeError(f"{at}: {said} is not three whole numbers and a number") from None
    if max(node) > _MOST:
        raise StepTimeError(f"{at}: a node has a number above {_MOST}")
    if node in cells:
        raise StepTimeError(f"{at}: the row of {_told(node)} is there twice")
    if not 0.0 < value < math.inf:
        raise StepTimeError(f"{at}: milliseconds is {row[3]}, not a number above 0")
    cells[node] = value


def _told(node: tuple[int, int, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(AXES, node, strict=True))


class _Fields:
    """What a JSON object holds, taken field by field."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self._path = path
        self._values = values

    def take(self, name: str, default: Any = None) -> Any:
        value = self._values.pop(name, default)
        if value is None:
            raise StepTimeError(f"{self._path}: {name} is missing")
        return value

    def items(self, name: str) -> list[Any]:
        value = self.take(name)
        if not isinstance(value, list):
            raise StepTimeError(f"{self._path}: {name} is {value!r}, not a list")
        return value

    def sized(self, value: Any, count: int, name: str) -> list[Any]:
        if not isinstance(value, list) or len(value) != count:
            raise StepTimeError(f"{self._path}: {name} is not a list of {count}")
        return value

    def number(self, value: Any, name: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise StepTimeError(f"{self._path}: {name} has {value!r}, not a number")
        try:
            return float(value)
        except OverflowError:
            raise StepTimeError(f"{self._path}: {name} is too large for a number") from None

    def whole(self, value: Any, name: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise StepTimeError(f"{self._path}: {name} has {value!r}, not a whole number")
        if value > _MOST:
            raise StepTimeError(f"{self._path}: {name} has a number above {_MOST}")
        return value

    def no_more(self) -> None:
        if self._values:
            raise StepTimeError(f"{self._path}: unknown: {', '.join(self._values)}")


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StepTimeError(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise StepTimeError(f"{path}: not a JSON object")
    return value


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1) + "\n"
