"""Draining: what counts as open, and when it is over."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deployments import closing
from deployments.closing import Closing, open_requests
from tests.deployments.conftest import eventually
from tests.deployments.front import Gateway, front, needs_haproxy


@needs_haproxy
def test_requests_are_open_until_they_are_written(tmp_path: Path) -> None:
    """Connections that clients keep for their next request are not."""
    folder = tmp_path / "node"
    folder.mkdir()
    gateway = Gateway()
    gateway.may_answer.clear()
    with gateway.running() as port, front(folder, [port]) as proxy, ThreadPoolExecutor(3) as pool:
        assert open_requests(tmp_path) == 0
        asked = [pool.submit(proxy.ask, "/v1", b"{}") for _ in range(3)]
        eventually(lambda: open_requests(tmp_path) == 3)
        gateway.may_answer.set()
        assert [answer.result()[0] for answer in asked] == [200, 200, 200]
        eventually(lambda: open_requests(tmp_path) == 0)


def test_without_haproxy_nothing_is_open(tmp_path: Path) -> None:
    assert open_requests(tmp_path) == 0


class World:
    """A router and a proxy that say what they are told to, and then repeat the last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tickets: list[object], carried: list[int]):
        self.tickets = tickets
        self.carried = carried
        self.asked = 0
        monkeypatch.setattr(closing, "_tickets", self.say_tickets)
        monkeypatch.setattr(closing, "open_requests", self.say_carried)
        monkeypatch.setattr(closing, "POLL_S", 0.001)

    async def say_tickets(self) -> object:
        self.asked += 1
        said = self.tickets.pop(0) if len(self.tickets) > 1 else self.tickets[0]
        if isinstance(said, Exception):
            raise said
        return said

    def say_carried(self, folder: Path) -> int:
        return self.carried.pop(0) if len(self.carried) > 1 else self.carried[0]


@pytest.mark.parametrize(
    ("tickets", "carried", "asked"),
    [
        ([0], [0], 1),
        ([3, 1, 0], [0], 3),
        # The last words are still being written; or the router is a new one.
        ([2, 0, 0, 0], [4, 1, 0], 4),
        # It moves from one replica to another: no ticket for a moment.
        ([1, 0, 1, 0], [1, 0], 4),
        ([ConnectionError("the router is gone"), 1, 0], [0], 3),
    ],
)
def test_it_is_over_when_neither_router_nor_proxy_has_any(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tickets: list[object],
    carried: list[int],
    asked: int,
) -> None:
    world = World(monkeypatch, tickets, carried)
    draining = Closing(tmp_path)
    draining.run()
    assert (draining.left, world.asked) == (0, asked)


@pytest.mark.parametrize(("says", "left"), [(7, 7), (TimeoutError(), None)])
def test_it_can_be_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: object, left: int | None
) -> None:
    world = World(monkeypatch, [says], [0])
    draining = Closing(tmp_path)
    thread = threading.Thread(target=draining.run, daemon=True)
    thread.start()
    eventually(lambda: world.asked > 2)
    draining.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert draining.left == left
