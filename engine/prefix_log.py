"""PrefixLog: which blocks can be found since somebody last asked, and which no more."""


class PrefixLog:
    """A net log: what came and went in between is not told.

    So it holds at most what can be found now and what could be found when it was last taken,
    however long nobody asks.
    """

    def __init__(self) -> None:
        self._stored: dict[int, None] = {}
        self._removed: dict[int, None] = {}

    def stored(self, hint: int) -> None:
        """A block can be found from now on."""
        if hint in self._removed:
            del self._removed[hint]
        else:
            self._stored[hint] = None

    def removed(self, hint: int) -> None:
        """A block can be found no more."""
        if hint in self._stored:
            del self._stored[hint]
        else:
            self._removed[hint] = None

    def take(self) -> tuple[list[int], list[int]]:
        """Return (stored, removed) since the last call and begin anew; no hint is in both."""
        taken = [*self._stored], [*self._removed]
        self._stored, self._removed = {}, {}
        return taken
