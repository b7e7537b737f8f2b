"""StopMatcher: where stop strings end in a text that comes in pieces."""

from collections.abc import Sequence


class StopMatcher:
    """Finds stop strings in a text that comes in pieces, and holds back their beginnings.

    One Knuth-Morris-Pratt automaton a stop string ("Fast pattern matching in strings",
    SIAM J. Comput. 6, 1977): constant time a character, however long the stop string.

    Attributes:
        none: there are no stop strings.
        stopped: one was complete.
    """

    __slots__ = ("_fallbacks", "_held", "_matched", "_starts", "_stops", "none", "stopped")

    def __init__(self, stops: Sequence[str]) -> None:
        """Look for ``stops``.

        Raises:
            ValueError: one of them is empty.
        """
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._stops = tuple(stops)
        self.none = not stops
        self._starts = frozenset(stop[0] for stop in stops)
        self._fallbacks = [_fallback(stop) for stop in stops]
        self._matched = [0] * len(self._stops)
        self._held = ""  # always the longest end of the text that begins a stop string
        self.stopped = False

    def feed(self, text: str, stops: bool) -> str:
        """Add ``text``, in which stop strings may be complete; return what is certain now."""
        if not self._held and self._starts.isdisjoint(text):
            return text
        held = self._held + text
        for end in range(len(self._held), len(held)):
            complete = self._advance(held[end])
            if complete and stops:
                self.stopped, self._held = True, ""
                return held[: end + 1 - complete]
        certain = len(held) - max(self._matched)
        self._held = held[certain:]
        return held[:certain]

    def rest(self) -> str:
        """What is held back, once."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> int:
        """Move all automata by one character; the length of the longest complete stop."""
        complete = 0
        for i, (stop, fallback) in enumerate(zip(self._stops, self._fallbacks, strict=True)):
            matched = self._matched[i]
            while matched and stop[matched] != char:
                matched = fallback[matched - 1]
            matched += stop[matched] == char
            if matched == len(stop):
                complete = max(complete, matched)
                matched = fallback[matched - 1]
            self._matched[i] = matched
        return complete


def _fallback(stop: str) -> list[int]:
    """For each prefix of ``stop``: the length of its longest proper end that begins it."""
    table = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[i] != stop[length]:
            length = table[length - 1]
        length += stop[i] == stop[length]
        table[i] = length
    return table
