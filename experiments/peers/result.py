"""What a run found, and the arithmetic on it."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """Tokens/s of one peer at one load in one round."""

    peer: str
    round: int
    load: str
    rate: float


@dataclass(frozen=True, slots=True)
class SchedulerSample:
    """µs of CPU that the books of one step took one peer's scheduler, in one round."""

    peer: str
    round: int
    running: int
    us: float


@dataclass(frozen=True, slots=True)
class SameBits:
    """How many of ``prompts`` a peer answered alike all together and alone."""

    peer: str
    equal: int
    prompts: int


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some rounds, the smallest and the largest."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Iterable[float]) -> "Spread | None":
        """None if there are no values."""
        found = sorted(values)
        if not found:
            return None
        return Spread(statistics.median(found), found[0], found[-1])


@dataclass(frozen=True, slots=True)
class Run:
    """A whole run.

    Attributes:
        versions: of what each peer loaded; its keys are the peers that were measured.
        notes: on how a peer was set up.
        left_out: peers that were not measured, or not to the end, and why.
        idle_share: the most CPU that a peer used while another had its turn; 1 is a core.
        facts: of machine, day and command, in the order to print them in.
    """

    versions: dict[str, dict[str, str]]
    notes: dict[str, tuple[str, ...]]
    left_out: dict[str, str]
    samples: tuple[Sample, ...]
    same_bits: tuple[SameBits, ...]
    schedulers: tuple[SchedulerSample, ...]
    idle_share: dict[str, float]
    facts: dict[str, str]

    def loads(self) -> list[str]:
        """The loads that were measured, in order."""
        return list(dict.fromkeys(sample.load for sample in self.samples))

    def rate(self, peer: str, load: str) -> Spread | None:
        """Tokens/s of a peer at a load."""
        return Spread.of(s.rate for s in self.samples if (s.peer, s.load) == (peer, load))

    def times_as_fast(self, peer: str, other: str, load: str) -> Spread | None:
        """How many times ``other``'s tokens/s a peer reached, round by round."""
        mine, theirs = (
            {s.round: s.rate for s in self.samples if (s.peer, s.load) == (name, load)}
            for name in (peer, other)
        )
        return ratio(mine, theirs)

    def step(self, peer: str, running: int) -> Spread | None:
        """µs of a step's books."""
        return Spread.of(s.us for s in self.schedulers if (s.peer, s.running) == (peer, running))

    def times_less(self, peer: str, other: str, running: int) -> Spread | None:
        """How many times as long ``other``'s books took as a peer's, round by round."""
        mine, theirs = (
            {s.round: s.us for s in self.schedulers if (s.peer, s.running) == (name, running)}
            for name in (peer, other)
        )
        return ratio(theirs, mine)


def ratio(above: dict[int, float], below: dict[int, float]) -> Spread | None:
    """The ratios of those rounds that both took part in; None if there are none.

    The median of ratios, not the ratio of medians: what slows a whole round cancels out.
    """
    both: Sequence[int] = [number for number in above if number in below]
    return Spread.of(above[number] / below[number] for number in both)
