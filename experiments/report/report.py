"""Report: some runs, and everything that is said and drawn of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from experiments.report import tables
from experiments.report.compare import Comparison
from experiments.report.summary import Summary, summarise
from experiments.report.table import Table
from experiments.report.targets import Targets
from experiments.simulator.outcome import Run


@dataclass(frozen=True, slots=True)
class Report:
    """Runs, and their figures.

    Attributes:
        runs: at least one, each with a name of its own.
        targets: that they are judged by.
        summaries: of the runs, in their order.
        comparisons: of simulated runs with measured ones.
        command: that made the report; may be empty.
        missing: runs that there would be as well, had nobody interrupted.
    """

    runs: Sequence[Run]
    targets: Targets
    summaries: Sequence[Summary]
    comparisons: Sequence[Comparison]
    command: str
    missing: int

    @classmethod
    def of(
        cls,
        runs: Sequence[Run],
        targets: Targets,
        comparisons: Sequence[Comparison] = (),
        command: str = "",
        missing: int = 0,
    ) -> "Report":
        """Summarise the runs.

        Raises:
            ValueError: there is none, or two have one name.
        """
        if not runs:
            raise ValueError("a report needs at least one run")
        check_names([run.name for run in runs])
        summaries = [summarise(run, targets) for run in runs]
        return cls(runs, targets, summaries, comparisons, command, missing)

    def overview(self) -> list[Table]:
        """Return the tables that answer most questions."""
        found = [
            tables.overview(self.summaries, self.targets),
            tables.reasons(self.summaries),
            tables.by_priority(self.summaries),
            *(comparison.table() for comparison in self.comparisons),
        ]
        return [table for table in found if table is not None]

    def details(self) -> list[Table]:
        """Return all other tables of figures."""
        found = [
            tables.requests(self.summaries),
            tables.latencies(self.summaries),
            tables.by_tenant(self.summaries),
            tables.fleet(self.summaries),
            tables.counts(self.summaries),
        ]
        return [table for table in found if table is not None and table.rows]

    def settings(self) -> list[Table]:
        """Return what made the runs so: first where they differ, then what they share."""
        common, differ = tables.settings(self.runs)
        return ([] if differ is None else [differ]) + ([common] if common.rows else [])

    def show(self, console: Console) -> None:
        """Print the overview: as tables for eyes in a terminal, in Markdown into a pipe."""
        for table in self.overview():
            table.show(console)


def check_names(names: Sequence[str]) -> None:
    """Make sure that the runs of a report can be told apart.

    Raises:
        ValueError: two have one name.
    """
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"each run of a report needs a name of its own; twice: {name}")
