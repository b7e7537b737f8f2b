"""Errand: one request on its way through the simulation."""

from dataclasses import replace

from deployments.patience import Patience
from experiments.loads.load import Arrival
from experiments.simulator.outcome import Outcome
from router.ticket import Ticket


class Errand:
    """What a gateway, the router and a replica know of one request.

    While it decodes it gets a token with each step of its replica, so nothing is noted of a
    single token: where a stretch of such steps began is enough.

    Attributes:
        arrival: as it is in the load.
        outcome: what comes of it.
        ticket: of its newest life.
        came_at: when its client's newest try came to a gateway.
        lives: tickets that it had.
        going_on: its newest try had a ticket before.
        tries: times that its client has sent it.
        losses: replicas that died under it.
        length: tokens, prompt and generated, when its stretch began, or now if it decodes not.
        since: number of the step that began its stretch; -1 if it decodes not.
        last_at: when its last token left the replica, while it decodes not.
        counted: generated tokens that its gateway has told of.
        taken: a replica has it.
        over: nothing more comes of it.
        patience: how long it goes on without a replica; None while it need not.
    """

    __slots__ = (
        "arrival",
        "came_at",
        "counted",
        "going_on",
        "last_at",
        "length",
        "lives",
        "losses",
        "outcome",
        "over",
        "patience",
        "since",
        "taken",
        "ticket",
        "tries",
    )

    def __init__(self, arrival: Arrival, outcome: Outcome) -> None:
        """Begin with nothing done."""
        self.arrival = arrival
        self.outcome = outcome
        self.ticket: Ticket | None = None
        self.came_at = 0.0
        self.lives = 0
        self.going_on = False
        self.tries = 1
        self.losses = 0
        self.length = arrival.prompt_tokens
        self.since = -1
        self.last_at = 0.0
        self.counted = 0
        self.taken = False
        self.over = False
        self.patience: Patience | None = None

    @property
    def generated(self) -> int:
        """Tokens of its answer, while it decodes not."""
        return self.length - self.arrival.prompt_tokens

    def holds(self, ticket: str) -> bool:
        """Whether the ticket is that of its newest life, which is not over."""
        return self.ticket is not None and self.ticket.id == ticket

    def again(self) -> None:
        """Its ticket had a place: a full queue does not turn it away."""
        if self.ticket is not None:
            self.ticket = replace(self.ticket, again=True)
