"""SimulatedReporter: tells the router a replica's news, when the real rule says so."""

from collections.abc import Callable
from typing import Final, Protocol

from deployments.news import Figures, News
from experiments.simulator.timeline import Timeline
from router.report import Report

_NEVER: Final = float("inf")


class Listener(Protocol):
    """Who hears reports, and answers with `SimulatedReporter.told`."""

    def hear(self, report: Report) -> None:
        """Take a report, which is sent now."""


class SimulatedReporter:
    """Does what `deployments.reporting.Reporter` does, on a timeline.

    It looks for news at the very moments at which the real one would, but plans no more of them
    than it must: a replica with nothing to do costs a look in each heartbeat.
    """

    def __init__(self, news: News, figures: Callable[[], Figures], timeline: Timeline) -> None:
        """Tell nobody yet; see `begin`.

        Args:
            news: what there is to tell, and when.
            figures: reads the replica's state.
            timeline: the time.
        """
        self._news = news
        self._figures = figures
        self._timeline = timeline
        self._listener: Listener | None = None
        self._telling = False
        self._planned = _NEVER  # when the next look is

    def begin(self, listener: Listener) -> None:
        """Report, from now on."""
        self._listener = listener
        self._report()

    def stop(self) -> None:
        """Report no more."""
        self._listener = None

    def admitted(self, key: str) -> None:
        """A request was taken."""
        if self._news.admitted(key):
            self._stir()

    def ended(self, key: str) -> None:
        """A request has ended; its blocks are free. `moved` has to follow in this moment."""
        self._news.ended(key)

    def moved(self, *, room: bool = False) -> None:
        """A step was done.

        Args:
            room: something has ended.
        """
        if self._news.moved() or room:
            self._stir()

    def told(self, full: bool) -> None:
        """The last report was answered.

        Args:
            full: the next one is to name all that the replica holds.
        """
        self._telling = False
        self._news.arrived(full)
        self._stir()

    def _stir(self) -> None:
        """Look for news now, or plan to, if that is due before the next look that is planned."""
        if self._telling or self._listener is None:
            return
        due, now = self._news.look_at, self._timeline.now
        if due <= now:
            self._look()
        elif due < self._planned:
            self._planned = due
            self._timeline.at(due, self._planned_look, due)

    def _planned_look(self, due: float) -> None:
        if due == self._planned:  # else an earlier one was planned since
            self._planned = _NEVER
            self._stir()

    def _look(self) -> None:
        if self._news.look(self._timeline.now, self._figures):
            self._report()
        else:
            self._stir()

    def _report(self) -> None:
        if self._listener is not None:
            self._telling = True
            self._listener.hear(self._news.report(self._timeline.now, self._figures()))
