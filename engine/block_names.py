"""BlockNames: which block is found under which name, and who is to hear of it."""

from collections.abc import Container, Iterable, Sequence
from itertools import islice

from engine.prefix_hash import hint
from engine.prefix_log import PrefixLog


class BlockNames:
    """A name has one block, and a block one name at most."""

    def __init__(self, depths: Container[int] | None) -> None:
        """Name nothing yet.

        Args:
            depths: which blocks of a sequence, the first being 1, are told of; None: all.
        """
        self._depths = depths
        self._name_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._told: set[int] = set()  # blocks that are told of; all are named
        self._log = PrefixLog()

    def __contains__(self, block: int) -> bool:
        """Whether a block has a name."""
        return block in self._name_of

    def block(self, name: bytes) -> int | None:
        """Return the block that is found under a name, None if there is none."""
        return self._block_of.get(name)

    def missing(self, names: Iterable[bytes]) -> list[bytes]:
        """Return the names under which nothing is found."""
        return [name for name in names if name not in self._block_of]

    def give(self, block: int, name: bytes, depth: int) -> bool:
        """Name a block; False, and nothing is changed, if another one has the name.

        Args:
            block: its id.
            name: says what it holds.
            depth: its place in a sequence, from 1.
        """
        if self._block_of.setdefault(name, block) != block:
            return False
        self._name_of[block] = name
        # A name has one depth, so who asks for some depths asks for the names there.
        if self._depths is None or depth in self._depths:
            self._told.add(block)
            self._log.stored(hint(name))
        return True

    def forget(self, block: int) -> None:
        """Take a block's name away: it will hold something else."""
        name = self._name_of.pop(block)
        del self._block_of[name]
        if block in self._told:
            self._told.remove(block)
            self._log.removed(hint(name))

    def take_events(self) -> tuple[list[int], list[int]]:
        """Return the hints of names that were given since the last call, and of those taken away.

        A name that came and went in between is in neither list.
        """
        return self._log.take()

    def hints(self, blocks: Iterable[int], most: int) -> list[int]:
        """Return the hints of the first ``most`` blocks that are told of; the events begin anew."""
        self._log = PrefixLog()
        names = (self._name_of[block] for block in blocks if block in self._told)
        return [hint(name) for name in islice(names, most)]

    def fault(self, unused: Sequence[int], cached: Iterable[int]) -> str | None:
        """Say what does not add up, if anything does not.

        Args:
            unused: blocks that hold nothing, and have no name.
            cached: blocks that are kept for what they hold, under a name.
        """
        if {name: block for block, name in self._name_of.items()} != self._block_of:
            return "names and blocks do not match"
        if any(block in self._name_of for block in unused):
            return "an unused block has a name"
        if not all(block in self._name_of for block in cached):
            return "a cached block has no name"
        if not self._told <= set(self._name_of):
            return "blocks without a name are told of"
        return None
