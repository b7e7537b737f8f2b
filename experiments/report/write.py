"""Writes a report into a folder."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from experiments.report import frame
from experiments.report.compare import Comparison
from experiments.report.earlier import remove_report
from experiments.report.needs import Format, Picture, Rows, require
from experiments.report.record import write_record
from experiments.report.report import Report
from experiments.report.targets import Targets
from experiments.simulator.outcome import Run

DEFAULT_FORMATS: Final[tuple[Format, ...]] = ("csv", "html")

_ROWS: Final[tuple[Rows, ...]] = ("csv", "parquet")
_PICTURES: Final[tuple[Picture, ...]] = ("png", "svg")


def write_report(
    runs: Sequence[Run],
    folder: Path,
    *,
    targets: Targets | None = None,
    formats: Collection[Format] = DEFAULT_FORMATS,
    comparisons: Sequence[Comparison] = (),
    command: str = "",
    missing: int = 0,
) -> list[Path]:
    """Write what the runs say into a folder; returns the files. The same runs give the same bytes.

    - ``csv``, ``parquet``: ``outcomes``, a row for each request, ``samples``, a row for each
      moment, and ``summary``; ``runs.json`` with the settings. `read_runs` reads them back.
    - ``png``, ``svg``: the plots, in the folder's ``plots``.
    - ``html``: ``report.html``, a page that needs no other file.

    Args:
        runs: at least one, each with a name of its own.
        folder: made if it is not there; all files of an earlier report are removed.
        targets: the service level that the runs are judged by; the default's if None.
        formats: what to write.
        comparisons: to show as well.
        command: that led here, as the page shows it.
        missing: runs that were to be in the report as well, had it not been interrupted.

    Raises:
        ValueError: there is no run, or two have one name.
        MissingLibrary: a format needs a library that is not there.
        OSError: the folder cannot be written to.
    """
    require(formats)
    report = Report.of(runs, targets or Targets(), comparisons, command, missing)
    folder.mkdir(parents=True, exist_ok=True)
    remove_report(folder)
    files: list[Path] = []
    rows: list[Rows] = [format for format in _ROWS if format in formats]
    if rows:
        files += write_record(runs, folder, rows)
        files += [frame.write(frame.summary(report.summaries), folder, format) for format in rows]
    pictures: list[Picture] = [format for format in _PICTURES if format in formats]
    if pictures or "html" in formats:
        # Only here, since they import matplotlib, which is in an extra.
        from experiments.report import drawing, gallery, page

        if pictures:
            plots = folder / "plots"
            plots.mkdir(exist_ok=True)
            drawn = gallery.for_files(report)
            files += [drawing.save(plot, plots, format) for format in pictures for plot in drawn]
        if "html" in formats:
            file = folder / "report.html"
            file.write_text(page.render(report), encoding="utf-8", errors="replace")
            files.append(file)
    return files
