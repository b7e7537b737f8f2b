"""Coming: names of blocks that are being computed and cannot be found yet."""

from collections.abc import Iterable, Sequence


class Coming:
    """Which names are announced, and by which request; the first that announces one has it."""

    def __init__(self) -> None:
        """Begin with none."""
        self._by: dict[bytes, int] = {}

    def __len__(self) -> int:
        """How many names are announced."""
        return len(self._by)

    def announce(self, id: int, names: Iterable[bytes]) -> None:
        """Say that a request computes what is to have these names."""
        for name in names:
            self._by.setdefault(name, id)

    def withdraw(self, id: int, names: Iterable[bytes]) -> None:
        """Take back what a request has announced: it is there now, or never will be."""
        for name in names:
            if self._by.get(name) == id:
                del self._by[name]

    def leading(self, names: Sequence[bytes]) -> int:
        """Return how many of these names, from the first on, are announced."""
        return next((i for i, name in enumerate(names) if name not in self._by), len(names))

    def ids(self) -> set[int]:
        """Return the requests that have announced something."""
        return set(self._by.values())
