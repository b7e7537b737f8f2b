"""Match, who holds a beginning of a prompt; and Fate, what that meant for its ticket."""

from enum import StrEnum
from typing import NamedTuple


class Match(NamedTuple):
    """A replica that holds a beginning of a prompt.

    Attributes:
        replica: its name.
        blocks: how many blocks of the prompt it holds, as far as is known.
        in_use: how many of these, at least, a request that is placed there holds as well, so that
            they are not among the free ones.
    """

    replica: str
    blocks: int
    in_use: int


class Fate(StrEnum):
    """Where a ticket went, by what was held of its prompt."""

    HERE = "here"  # no replica was known to hold more of it
    ELSEWHERE = "elsewhere"  # another replica holds more
    NOWHERE = "nowhere"  # nobody holds any of it
