"""SimulatedHope: `deployments.hope.Hope` under simulated time, where a replica is not called."""

from collections.abc import Callable

from experiments.simulator.timeline import Timeline


class SimulatedHope:
    """A bounded wait for the first replica; see `deployments.muster.Hoping`."""

    def __init__(self, hold_s: float, timeline: Timeline, expire: Callable[[], None]) -> None:
        """Hope for nothing yet.

        Args:
            hold_s: how long it lasts, in seconds.
            timeline: the time.
            expire: called when it ends without a replica.
        """
        self._hold_s = hold_s
        self._timeline = timeline
        self._expire = expire
        self._begun = 0  # times that it has begun, which tells an end from those before
        self.alive = False

    def begin(self) -> None:
        """Hope from now on; nothing changes if it does already."""
        if self.alive:
            return
        self.alive = True
        self._begun += 1
        self._timeline.after(self._hold_s, self._give_up, self._begun)

    def fulfil(self) -> None:
        """There is a replica."""
        self.alive = False

    def _give_up(self, begun: int) -> None:
        if self.alive and begun == self._begun:
            self.alive = False
            self._expire()
