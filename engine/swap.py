"""Swap: blocks of preempted requests in host memory, instead of computed again.

Only the books are kept here: who holds which slot of host memory (a slot is room for one
block), and the copies that are due. Whoever runs the model makes them, in their order and
before the forward pass of the plan that they came with. Since they are made in order, a
slot or a block that one copy has read may be written by the next, and whatever is ordered
is there by the time it is needed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from engine.blocks import blocks_for
from engine.request import is_int, require
from engine.step_times import StepTimes


@dataclass(frozen=True, slots=True)
class Copy:
    """Whole blocks to copy, ``blocks[i]`` to or from ``slots[i]``.

    Attributes:
        out: to host memory; else from there.
    """

    out: bool
    blocks: tuple[int, ...]
    slots: tuple[int, ...]


class SwapSpace:
    """The slots of host memory. Waiting requests hold them, running ones never do.

    Invariant: a slot is free or held by exactly one request.
    """

    def __init__(
        self, slots: int, block_tokens: int, worthwhile: Callable[[int], bool] | None = None
    ) -> None:
        """Start with all slots free.

        Args:
            slots: how many there are, >= 0.
            block_tokens: tokens in a block.
            worthwhile: whether copying so many tokens there and back is cheaper than
                computing them again; always if None.

        Raises:
            InvalidParam: ``slots`` is negative, or ``block_tokens`` below 1.
        """
        require(is_int(slots, 0), "slots", slots, "an integer from 0")
        require(is_int(block_tokens, 1), "block_tokens", block_tokens, "an integer from 1")
        self.total_slots = slots
        self._block_tokens = block_tokens
        self._worthwhile = worthwhile or (lambda tokens: True)
        self._free = list(range(slots))
        self._held: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._copies: list[Copy] = []

    @property
    def free_slots(self) -> int:
        """Slots that nobody holds."""
        return len(self._free)

    def holders(self) -> Iterable[int]:
        """Return the ids of the requests that hold slots."""
        return self._held.keys()

    def slots(self, id: int) -> Sequence[int]:
        """Return the slots of a request in the order of its tokens."""
        return self._held[id][1] if id in self._held else ()

    def kept(self, id: int) -> int:
        """Return how many leading tokens of a request have their K and V here."""
        return self._held[id][0] if id in self._held else 0

    def keep(self, id: int, tokens: int, table: Sequence[int]) -> bool:
        """Order a copy of what a request has computed, which is about to lose its blocks.

        Args:
            id: the request; it holds nothing here.
            tokens: its leading tokens whose K and V exist, or will when the copy is made.
            table: its blocks.

        Returns:
            Whether that is done; not if there are too few slots, or it is not worthwhile.
        """
        count = blocks_for(tokens, self._block_tokens)
        if not 0 < count <= len(self._free) or not self._worthwhile(tokens):
            return False
        slots = tuple(self._free.pop() for _ in range(count))
        self._held[id] = (tokens, slots)
        self._copies.append(Copy(True, tuple(table[:count]), slots))
        return True

    def restore(self, id: int, cached: int, table: Sequence[int]) -> int:
        """Order back what a request has here, and free its slots.

        Args:
            id: the request; one that holds nothing gets nothing.
            cached: its leading tokens whose K and V its blocks have already.
            table: its new blocks; those past the cached tokens are its own.

        Returns:
            Leading tokens whose K and V its blocks have once the copies are made.
        """
        tokens, slots = self._held.pop(id, (0, ()))
        self._free.extend(slots)
        if tokens <= cached:
            return cached
        first = cached // self._block_tokens
        self._copies.append(Copy(False, tuple(table[first : len(slots)]), slots[first:]))
        return tokens

    def drop(self, id: int) -> None:
        """Free the slots of a request that has ended; one that holds none is left alone."""
        self._free.extend(self._held.pop(id, (0, ()))[1])

    def take_copies(self) -> list[Copy]:
        """Return the copies that have been ordered since the last call, in order."""
        copies, self._copies = self._copies, []
        return copies


class SwapCost:
    """Says whether copying is cheaper than computing again, by what both took here.

    A preempted request costs others the time of its blocks' way out and back, or that of
    its tokens in later steps. Both are seconds that a step is longer by.
    """

    def __init__(self, seconds_per_block: float, block_tokens: int, times: StepTimes) -> None:
        """Compare with what steps cost.

        Args:
            seconds_per_block: what one copy of one block takes, one way.
            block_tokens: tokens in a block.
            times: what prompts cost; while that is not known, copying is the cheaper.
        """
        self._seconds_per_block = seconds_per_block
        self._block_tokens = block_tokens
        self._times = times

    def __call__(self, tokens: int) -> bool:
        """Return whether it is cheaper to copy so many tokens out and back."""
        prompts = self._times.prompts
        copying = 2 * self._seconds_per_block * blocks_for(tokens, self._block_tokens)
        return not prompts.known or copying < prompts.at(tokens)
