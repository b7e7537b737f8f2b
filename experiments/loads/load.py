"""Load: requests and when they come, the same for a simulation and for a live server."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a load.

    Attributes:
        at: seconds from the load's beginning, >= 0.
        prompt_tokens: >= 1.
        output_tokens: that the answer has, >= 1.
        priority: higher is more urgent.
        tenant: whom it is for; empty if nobody is told apart.
        pieces: names of the pieces, `Load.piece_tokens` long, that the prompt begins with. Two
            prompts whose first pieces have the same names begin with the same tokens. The last
            piece may reach beyond the prompt's end.
    """

    at: float
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    tenant: str = ""
    pieces: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in the order in which they come.

    Attributes:
        name: of the load, as a report shows it.
        arrivals: sorted by `Arrival.at`.
        piece_tokens: length of each of `Arrival.pieces`, >= 1.
    """

    name: str
    arrivals: Sequence[Arrival]
    piece_tokens: int = 512

    @property
    def seconds(self) -> float:
        """When the last request comes; 0 without any."""
        return self.arrivals[-1].at if self.arrivals else 0.0
