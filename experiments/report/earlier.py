"""Earlier: the files of a report that another is written over."""

import re
from pathlib import Path
from typing import Final

_ROWS: Final = ("outcomes", "samples", "summary")
# The record's own list first: without it nothing takes the rest for a report.
_FILES: Final = (
    "runs.json",
    *(f"{name}.csv" for name in _ROWS),
    *(f"{name}.parquet" for name in _ROWS),
    "report.html",
)
_PLOT: Final = re.compile(
    r"(cost|ttft|ttft-by-priority|ttft-over-time|fleet|compared-(ttft|tpot|requests)(-\d+)?)"
    r"\.(png|svg)"
)


def remove_report(folder: Path) -> None:
    """Remove what a report wrote into the folder, in every format, and nothing else.

    What one run has in one format and another in another would be read as one report.

    Raises:
        OSError: a file cannot be removed.
    """
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    plots = folder / "plots"
    if plots.is_dir():
        for file in plots.iterdir():
            if _PLOT.fullmatch(file.name):
                file.unlink()
