"""Returns: tickets that a gateway gives up, told to a router."""

from experiments.simulator.router import SimulatedRouter
from experiments.simulator.timeline import Timeline


class Returns:
    """Tells one message after the other; what is given up meanwhile goes into the next one.

    As `deployments.router_client.RouterClient` does.
    """

    def __init__(self, router: SimulatedRouter, timeline: Timeline, network_s: float) -> None:
        """Begin with nothing to tell.

        Args:
            router: who is told.
            timeline: the time.
            network_s: one way of a message.
        """
        self._router = router
        self._timeline = timeline
        self._network_s = network_s
        self._tickets: dict[str, bool] = {}
        self._telling = False

    def give_up(self, ticket: tuple[str, bool]) -> None:
        """Tell of a ticket, by its id; True for one whose end was seen."""
        key, finished = ticket
        self._tickets[key] = finished
        if not self._telling:
            self._tell(None)

    def _tell(self, _: None) -> None:
        self._telling = bool(self._tickets)
        if self._telling:
            told, self._tickets = self._tickets, {}
            self._router.send(self._heard, told)

    def _heard(self, tickets: dict[str, bool]) -> None:
        self._router.release(tickets)
        self._timeline.after(self._network_s, self._tell)
