"""``python -m experiments.guidance``: compare what is installed, and print Markdown.

Neither xgrammar nor jsonschema is needed to serve: install them where this runs, not there.
"""

import argparse
import importlib
import importlib.util
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.loader import DEMO_MODEL, load_tokenizer, resolve
from engine.model_info import model_info
from experiments.guidance.cases import CASES, UNUSUAL, Case
from experiments.guidance.libraries import Library, LlguidanceLibrary, Refused, XgrammarLibrary

_MAKERS: dict[str, Callable[[Any, int, Sequence[int]], Library]] = {
    "llguidance": LlguidanceLibrary,
    "xgrammar": XgrammarLibrary,
}
_MOST = 300  # tokens of a walk
_REPLAYED = 500
_LIST = Case(
    "",
    {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    (),
    (),
)


class Report:
    """What one library did with all cases; fill it with ``run``."""

    def __init__(self, library: Library, tokenizer: Any, eos: Sequence[int], walks: int) -> None:
        self.library = library
        self.wrong: list[str] = []
        self.refused: list[str] = []
        self.taken: list[str] = []
        self.good = self.bad = self.ended = self.valid = 0
        self.compiles: list[float] = []
        self.masks: list[float] = []
        self.pushes: list[float] = []
        self.replay = 0.0
        self.megabytes = 0.0
        self._tokenizer = tokenizer
        self._eos = eos
        self._walks = walks

    def run(self) -> None:
        """Try everything."""
        before = _resident()
        for case in CASES:
            try:
                began = time.perf_counter()
                compiled = self.library.compile(case)
                self.compiles.append(time.perf_counter() - began)
            except Refused as error:
                self.wrong.append(f"{case.name}: refused ({str(error).splitlines()[0][:80]})")
                continue
            self._try_texts(case, compiled)
            self._walk(case, compiled)
        self._replay()
        self.megabytes = _resident() - before
        for name, schema in UNUSUAL:
            try:
                self.library.compile(Case(name, schema, (), ()))
            except Refused:
                self.refused.append(name)
            else:
                self.taken.append(name)

    def _try_texts(self, case: Case, compiled: Any) -> None:
        for fits, values in ((True, case.good), (False, case.bad)):
            for value in values:
                text = value if case.schema is None else json.dumps(value, ensure_ascii=False)
                if self._accepts(compiled, text) is not fits:
                    self.wrong.append(f"{case.name}: {'refuses' if fits else 'allows'} `{text}`")
                elif fits:
                    self.good += 1
                else:
                    self.bad += 1

    def _accepts(self, compiled: Any, text: str) -> bool:
        matcher = self.library.matcher(compiled)
        for token in self._tokenizer.encode(text, add_special_tokens=False):
            if not _has(matcher.allowed(), token) or not matcher.push(token):
                return False
        return matcher.finished() or _has(matcher.allowed(), self._eos[0])

    def _walk(self, case: Case, compiled: Any) -> None:
        """Draw tokens from the masks; what comes to its end must fit."""
        for seed in range(self._walks):
            rng = random.Random(f"{case.name}/{seed}")
            matcher = self.library.matcher(compiled)
            tokens: list[int] = []
            while not matcher.finished() and len(tokens) < _MOST:
                began = time.perf_counter()
                mask = matcher.allowed()
                self.masks.append(time.perf_counter() - began)
                bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
                token = int(rng.choice(np.flatnonzero(bits)))
                began = time.perf_counter()
                matcher.push(token)
                self.pushes.append(time.perf_counter() - began)
                if token in self._eos:
                    break
                tokens.append(token)
            else:
                if not matcher.finished():
                    continue
            self.ended += 1
            text = self._tokenizer.decode(tokens)
            if _fits(case, text):
                self.valid += 1
            else:
                self.wrong.append(f"{case.name}: gave `{text[:60]}`")

    def _replay(self) -> None:
        """What a request costs that goes on elsewhere after so many tokens, grammar included."""
        text = json.dumps([{"n": i} for i in range(_REPLAYED)])
        tokens = self._tokenizer.encode(text, add_special_tokens=False)[:_REPLAYED]
        times = []
        for _ in range(5):
            began = time.perf_counter()
            matcher = self.library.matcher(self.library.compile(_LIST))
            for token in tokens:
                if not matcher.push(token):
                    raise RuntimeError(f"{self.library.name} does not take its own list")
            times.append(time.perf_counter() - began)
        self.replay = statistics.median(times)

    def cells(self) -> list[tuple[str, str]]:
        """Return the rows of the table: what was measured, and the value."""
        compiles = sorted(self.compiles)
        return [
            ("version", self.library.version),
            ("fitting texts allowed", f"{self.good} of {sum(len(c.good) for c in CASES)}"),
            ("other texts refused", f"{self.bad} of {sum(len(c.bad) for c in CASES)}"),
            ("random walks that ended and fit", f"{self.valid} of {self.ended}"),
            ("unusual schemas: refused / taken", f"{len(self.refused)} / {len(self.taken)}"),
            ("compile, median / longest, ms", _pair(compiles, 1e3)),
            ("mask, median / p99, µs", _pair(sorted(self.masks), 1e6, 0.99)),
            ("push, median / p99, µs", _pair(sorted(self.pushes), 1e6, 0.99)),
            (f"replay {_REPLAYED} tokens, ms", f"{self.replay * 1e3:.2f}"),
            ("memory grown, MB", f"{self.megabytes:.0f}"),
        ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison; the exit status is 0."""
    parser = argparse.ArgumentParser(prog="python -m experiments.guidance", description=__doc__)
    parser.add_argument("--walks", type=int, default=10, help="random walks for each case")
    parser.add_argument("--out", type=Path, help="a file for the result, else it is printed")
    options = parser.parse_args(argv)
    folder = resolve(DEMO_MODEL)
    tokenizer, info = load_tokenizer(folder), model_info(folder)
    missing, reports = [], []
    for name, make in _MAKERS.items():
        if importlib.util.find_spec(name) is None:
            missing.append(f"{name} is not installed.")
            continue
        report = Report(
            make(tokenizer, info.vocab_size, info.eos_token_ids),
            tokenizer,
            info.eos_token_ids,
            options.walks,
        )
        report.run()
        reports.append(report)
    text = "\n".join([*missing, *_document(reports)])
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text + "\n")
    return 0


def _document(reports: Sequence[Report]) -> list[str]:
    if not reports:
        return []
    lines = [
        "# llguidance and xgrammar",
        "",
        "Made by `python -m experiments.guidance` with the demo model's tokenizer (49,152 tokens), "
        "on a machine with other work: compare the columns, not with other machines.",
        "",
        f"{len(CASES)} schemas and expressions, with texts that fit them and texts that do not. "
        "A walk draws tokens at random from the masks; what comes to its end must fit. A replay "
        "is what a request costs that goes on elsewhere, compiling its grammar again included. "
        "Unusual schemas ask for what neither can enforce: taking one means to enforce less than "
        "was asked.",
        "",
    ]
    lines += ["| | " + " | ".join(report.library.name for report in reports) + " |"]
    lines.append("|---" * (len(reports) + 1) + "|")
    for rows in zip(*(report.cells() for report in reports), strict=True):
        lines.append(f"| {rows[0][0]} | " + " | ".join(value for _, value in rows) + " |")
    for report in reports:
        lines += ["", f"## {report.library.name}", "", "Wrong:", ""]
        lines += [f"- {one}" for one in report.wrong] or ["- nothing"]
        lines += ["", f"Refused: {', '.join(report.refused) or 'nothing'}."]
        lines += ["", f"Taken: {', '.join(report.taken) or 'nothing'}."]
    return lines


def _pair(values: Sequence[float], scale: float, share: float = 1.0) -> str:
    high = values[min(len(values) - 1, int(share * len(values)))]
    return f"{statistics.median(values) * scale:.2f} / {high * scale:.1f}"


def _fits(case: Case, text: str) -> bool:
    if case.schema is None:
        return re.fullmatch(case.regex, text) is not None
    schemas: Any = importlib.import_module("jsonschema")
    try:
        value = json.loads(text)
        # jsonschema has no checker for some formats here; those are not looked at.
        schemas.validate(value, case.schema, format_checker=schemas.FormatChecker())
    except (ValueError, schemas.ValidationError):
        return False
    return True


def _has(mask: np.ndarray[Any, np.dtype[np.int32]], token: int) -> bool:
    return bool(mask[token // 32] >> token % 32 & 1)


def _resident() -> float:
    """Resident memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6
