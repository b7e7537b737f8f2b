"""Grammars: those of requests, compiled on a thread of their own, one after the other."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from engine.request import SamplingParams
from engine.submission import Submission

if TYPE_CHECKING:
    from engine.engine import Engine
    from engine.guides import Matcher

_WARM_UP = Submission("guided warm-up", (1,), SamplingParams(grammar="start: /a/"))


class Grammars:
    """Compiles for one event loop.

    Invariant: ``_compiling`` holds the keys whose grammar is compiled and that nobody has dropped
    since.
    """

    def __init__(self, engine: "Engine") -> None:
        """Begin with one that nobody asked for.

        Whoever asks first is not to wait for the tables of the vocabulary. That there can be none
        is told to those who ask.
        """
        self._engine = engine
        self._compiling: set[str] = set()
        self._thread = ThreadPoolExecutor(1, "grammars")
        self._thread.submit(engine.compile, _WARM_UP)

    @property
    def busy(self) -> bool:
        """Whether somebody waits for one."""
        return bool(self._compiling)

    async def compile(self, submission: Submission) -> "Matcher | None":
        """Compile a submission's grammar off the loop; None: it was dropped meanwhile.

        Raises:
            AdmitError, InvalidParam, EngineFailed: as :meth:`Engine.compile`.
        """
        key, loop = submission.key, asyncio.get_running_loop()
        self._compiling.add(key)
        try:
            matcher = await loop.run_in_executor(self._thread, self._engine.compile, submission)
            return matcher if key in self._compiling else None
        finally:
            self._compiling.discard(key)

    def drop(self, key: str) -> None:
        """Nobody waits for a submission any more; unknown ones are fine."""
        self._compiling.discard(key)

    def close(self) -> None:
        """Compile no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
