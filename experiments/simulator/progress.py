"""Progress: how far a simulation is, on a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def shown(name: str, seconds: float, console: Console) -> Iterator[Callable[[float], None]]:
    """Show a bar until one run is done; nothing where there is no terminal.

    Args:
        name: of the run.
        seconds: until the load's last request comes.
        console: to draw on.

    Returns:
        What is to be called with the simulated second.
    """
    total = max(seconds, 1e-9)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task(name, total=total, said="")

    def progress(at: float) -> None:
        # What comes after the last request is a tail of unknown length.
        said = f"{max(0.0, at):,.0f} of {seconds:,.0f} s simulated"
        bar.update(task, completed=min(max(0.0, at), total), said=said)

    with bar:
        yield progress
