"""Guides: what the engine asks of whoever restricts an answer to a grammar."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np


class Matcher(Protocol):
    """Where one answer stands in its grammar."""

    @property
    def finished(self) -> bool:
        """Whether nothing may follow: the answer ends without another step."""
        ...

    def mask(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return which tokens may come next; asking changes nothing.

        Returns:
            int32 [ceil(vocab / 32)]: bit t % 32 of word t // 32 is set if token t may. A
            token that ends answers may only where the grammar may end.
        """
        ...

    def push(self, token: int) -> None:
        """Go on by one token, which the mask must have allowed."""
        ...


class Guides(Protocol):
    """Makes a matcher for each request that brings a grammar."""

    def matcher(self, grammar: str, generated: Sequence[int] = ()) -> Matcher:
        """Return the matcher of an answer that has got as far as ``generated``.

        Raises:
            InvalidParam: ``grammar`` is none, or does not allow ``generated``.
        """
        ...


class LazyGuides:
    """Guides that are made for the first request that needs them.

    Args:
        make: makes them; called at most once, unless it raises.
    """

    def __init__(self, make: Callable[[], Guides]) -> None:
        self._make = make
        self._made: Guides | None = None
        self._making = threading.Lock()

    def matcher(self, grammar: str, generated: Sequence[int] = ()) -> Matcher:
        """Return a matcher, as :meth:`Guides.matcher` does."""
        with self._making:
            if self._made is None:
                self._made = self._make()
        return self._made.matcher(grammar, generated)
