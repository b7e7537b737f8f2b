"""Worker: a thread that does one job while its owner does something else."""

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Worker(Generic[T]):
    """One job at a time, all of them on the same thread.

    The thread ends with :meth:`close`, or when its owner is gone; it never keeps a process
    from ending, even if its job hangs.
    """

    def __init__(self, name: str) -> None:
        """Start the thread, with nothing to do."""
        self._jobs: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._results: SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = SimpleQueue()
        # The thread knows the queues alone, or its owner would never be gone.
        work = threading.Thread(
            target=_work, args=(self._jobs, self._results), name=name, daemon=True
        )
        work.start()
        self._close = weakref.finalize(self, self._jobs.put, None)

    def start(self, job: Callable[[], T]) -> None:
        """Begin a job; the results of those before it have been fetched."""
        self._jobs.put(job)

    def result(self) -> T:
        """Wait for the job, and return or raise what it did."""
        value, error = self._results.get()
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # None is a value where T has it

    def close(self) -> None:
        """End the thread after the job that is under way."""
        self._close()


def _work(
    jobs: "SimpleQueue[Callable[[], T] | None]",
    results: "SimpleQueue[tuple[T, None] | tuple[None, BaseException]]",
) -> None:
    while (job := jobs.get()) is not None:
        try:
            results.put((job(), None))
        except BaseException as error:
            results.put((None, error))
        del job  # it holds a whole batch
