"""Sessions: the gateways that live, and what each is told."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from deployments.messages import Word


class Sessions:
    """One for each gateway, open as long as it lives."""

    def __init__(self) -> None:
        self._words: dict[str, asyncio.Queue[Word]] = {}

    def __len__(self) -> int:
        return len(self._words)

    def tell(self, word: Word) -> None:
        """Tell all of them."""
        for words in self._words.values():
            words.put_nowait(word)

    async def open(
        self, gateway: str, first: Word, ended: Callable[[str], None]
    ) -> AsyncGenerator[Word, None]:
        """Yield what the gateway is told until it ends the session.

        Args:
            gateway: whose it is; an older session of the same one is void.
            first: the first word.
            ended: called with the gateway when its newest session ends.
        """
        words = self._words[gateway] = asyncio.Queue()
        try:
            yield first
            while True:
                yield await words.get()
        finally:
            if self._words.get(gateway) is words:
                del self._words[gateway]
                ended(gateway)
