"""Progress: how far a replay is, on a terminal."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from experiments.replay.client import Tally


class Bar:
    """A bar that a replay moves on; nothing where there is no terminal.

    Args:
        seconds: until the last request is sent.
        requests: of the load.
        console: to draw on.
    """

    def __init__(self, seconds: float, requests: int, console: Console) -> None:
        self._seconds = seconds
        self._requests = requests
        # Drawn when told to: a thread that draws would take its time from the client's.
        self._progress = Progress(
            BarColumn(),
            TextColumn("{task.fields[said]}"),
            console=console,
            auto_refresh=False,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("replay", total=seconds or 1.0, said="")

    def __enter__(self) -> "Bar":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def __call__(self, seconds: float, tally: Tally) -> None:
        """Show how it is ``seconds`` after the load began."""
        self._progress.start()
        ended = tally.ended
        said = (
            f"{min(seconds, self._seconds):.0f}/{self._seconds:.0f} s  "
            f"sent {len(tally.lateness_s)}/{self._requests}  under way {tally.under_way}  "
            f"answered {ended['ok']}  refused {ended['refused']}  failed {ended['failed']}"
        )
        done = self._progress.tasks[0].total if seconds >= self._seconds else seconds
        self._progress.update(self._task, completed=done, said=said, refresh=True)
