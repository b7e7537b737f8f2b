"""Waiting for calls that may never return, while processes live that may die."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import psutil
import pytest

from deployments.failures import RayDied
from deployments.watch import Watch, within


@pytest.fixture
def vital() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    yield process
    assert process.stdin is not None
    process.stdin.close()
    process.wait(10)


def test_a_call_is_waited_for_and_its_error_is_raised_here() -> None:
    watch = Watch(())
    threads: list[threading.Thread] = []
    watch.run(lambda: threads.append(threading.current_thread()))
    assert threads != [threading.current_thread()]
    with pytest.raises(ZeroDivisionError):
        watch.run(lambda: 1 / 0)


def test_a_call_that_does_not_return_is_left() -> None:
    watch = Watch(())
    release = threading.Event()
    call = watch.call(release.wait)
    assert not watch.wait(call, 0.05)
    assert not watch.settled(0.0)
    release.set()
    assert watch.wait(call, 10.0)
    assert watch.settled(0.0)


def test_a_death_ends_the_wait(vital: subprocess.Popen[bytes]) -> None:
    """The GCS is killed: every call into Ray would wait for it for a minute or for ever."""
    watch = Watch([psutil.Process(vital.pid)])
    assert not watch.wait(Future(), 0.0)
    # Nobody has taken note of it: it is a zombie.
    call = watch.call(vital.kill)
    assert watch.wait(call)
    with pytest.raises(RayDied, match=rf"\({vital.pid}\) has ended") as found:
        watch.wait(Future(), 60.0)
    assert found.value.pid == vital.pid
    vital.wait(10)
    with pytest.raises(RayDied):
        watch.wait(Future(), 60.0)


def test_a_signal_ends_the_wait() -> None:
    """In Ray's own C++ it would be seen when the call returns, if ever."""

    class Told(Exception):
        pass

    def tell(number: int, frame: object) -> None:
        raise Told

    def signal_and_never_return() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        threading.Event().wait()

    before = signal.signal(signal.SIGUSR1, tell)
    watch = Watch(())
    try:
        with pytest.raises(Told):
            watch.run(signal_and_never_return)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_within_says_whether_it_ended() -> None:
    release = threading.Event()
    assert not within(0.0, release.wait)
    release.set()
    assert within(10.0, release.wait)
