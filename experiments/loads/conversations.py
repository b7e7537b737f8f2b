"""Conversations: requests that begin with all that was said before."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from experiments.loads.lengths import Length
from experiments.loads.load import Arrival


@dataclass(frozen=True, slots=True)
class Conversations:
    """What conversations are like.

    Attributes:
        turns: requests of one.
        think_s: mean seconds from one of its requests to the next, exponentially distributed; the
            answer's own time is part of it, since a load does not know it.
        system: tokens that all conversations begin with.
        prompt: tokens that a user says each turn.
        output: tokens of each answer; those of earlier turns are part of the prompt.
        piece_tokens: of the pieces that tell what prompts have in common.
    """

    turns: Length
    think_s: float
    system: int
    prompt: Length
    output: Length
    piece_tokens: int

    def arrivals(self, starts: Sequence[float], seconds: float, rng: Random) -> list[Arrival]:
        """Return the requests of conversations, sorted by time.

        Args:
            starts: when a conversation's first request comes.
            seconds: nothing comes from then on.
            rng: of all draws.
        """
        names = count(self.system // self.piece_tokens)
        shared = tuple(range(self.system // self.piece_tokens))
        requests: list[Arrival] = []
        for start in starts:
            at, said, pieces = start, self.system, shared
            for _ in range(self.turns.draw(rng)):
                said += self.prompt.draw(rng)
                answer = self.output.draw(rng)
                missing = -(-said // self.piece_tokens) - len(pieces)
                pieces += tuple(next(names) for _ in range(missing))
                if at < seconds:
                    requests.append(Arrival(at, said, answer, pieces=pieces))
                said += answer
                at += rng.expovariate(1 / self.think_s)
        return sorted(requests, key=lambda request: request.at)
