"""WarmUp: a request that nobody sent, so that nobody's first one meets a model that fails."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from engine.request import SamplingParams
from engine.submission import Delta, Submission

if TYPE_CHECKING:
    from engine.engine import Engine

_TIMEOUT_S = 120.0


class WarmUp:
    """Two tokens, before anything else is submitted to an engine."""

    def __init__(self) -> None:
        self._error: Future[str | None] = Future()

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return self._error.done()

    def run(self, engine: "Engine") -> None:
        """Generate them.

        Raises:
            TimeoutError: they did not come.
            RuntimeError: they failed.
        """
        params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
        engine.submit(Submission("warm-up", (1, 2, 3, 4), params))
        try:
            error = self._error.result(_TIMEOUT_S)
        except TimeoutError:
            limit = f"{_TIMEOUT_S:.0f} s"
            raise TimeoutError(f"no answer to a warm-up request in {limit}") from None
        if error is not None:
            raise RuntimeError(f"the warm-up request failed: {error}") from engine.failure

    def stepped(self, deltas: Sequence[Delta]) -> None:
        """See what a step made of it; on the engine's thread."""
        for delta in deltas:
            if delta.finish is not None or delta.error is not None:
                self._error.set_result(delta.error)
