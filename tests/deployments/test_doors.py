"""Who gets in, and who does not: real sockets on this machine."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import uvloop

from deployments.doors import Door, Doors, enter
from deployments.lane import WORD_BYTES, Lane
from tests.deployments.test_lane import Ear

HERE = "127.0.0.1"


class Host(Ear):
    """Hears one that came in."""

    def meet(self, lane: Lane) -> "Host":
        self.lane = lane
        return self


@pytest.fixture
async def doors() -> AsyncIterator[Doors]:
    doors = Doors(HERE)
    await doors.opened()
    yield doors
    doors.close()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def enters(door: Door, ear: Ear) -> Lane:
    lane = await enter(door, ear)
    assert lane is not None
    return lane


def test_both_ends_hear_each_other_on_the_loop_that_serve_has() -> None:
    async def meet() -> None:
        doors = Doors(HERE)
        await doors.opened()
        await test_both_ends_hear_each_other_until_one_closes(doors)
        doors.close()

    uvloop.run(meet())


@pytest.mark.parametrize("runs", [asyncio.run, uvloop.run])
def test_a_machine_without_power_is_noticed(runs: Callable[[Any], None]) -> None:
    """It says nothing, and a system by itself waits a quarter of an hour for it to."""

    async def meet() -> None:
        host, doors = Host(), Doors(HERE)
        await doors.opened()
        with doors.expect(host.meet) as door:
            assert door is not None
            lane = await enters(door, Ear())
            await until(lambda: hasattr(host, "lane"))
            for end in (lane, host.lane):
                assert end._transport is not None
                known = end._transport.get_extra_info("socket")
                assert known.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert 0 < known.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 30_000
            lane.close()
        doors.close()

    runs(meet())


async def test_both_ends_hear_each_other_until_one_closes(doors: Doors) -> None:
    host, guest = Host(), Ear()
    with doors.expect(host.meet) as door:
        assert door is not None
        lane = await enters(door, guest)
        big = "x" * 1_000_000
        lane.send(big)
        await until(lambda: big in host.heard)
        host.lane.send((1, None))
        host.lane.close()
        await until(lambda: guest.heard[-1:] == ["ended"])
        await until(lambda: host.heard[-1:] == ["ended"])
    assert [one for one in host.heard if one != "room"] == [big, "ended"]
    assert guest.heard == [(1, None), "ended"]


async def test_a_word_lets_one_in_once_and_only_while_it_is_expected(doors: Doors) -> None:
    host = Host()
    with doors.expect(host.meet) as door:
        assert door is not None
        lane = await enters(door, Ear())
        assert await enter(door, Ear()) is None
    with doors.expect(host.meet) as late:
        assert late is not None
    assert await enter(late, Ear()) is None
    assert host.heard == []
    lane.close()


class Stranger(asyncio.Protocol):
    """Shows a word of its own, and notes what it gets for it."""

    def __init__(self) -> None:
        self.got = b""
        self.over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"s" * WORD_BYTES)

    def data_received(self, data: bytes) -> None:
        self.got += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True


async def test_who_shows_another_word_hears_nothing(doors: Doors) -> None:
    host = Host()
    with doors.expect(host.meet) as door:
        assert door is not None
        loop = asyncio.get_running_loop()
        _, stranger = await loop.create_connection(Stranger, door.host, door.port)
        await until(lambda: stranger.over)
        assert (stranger.got, host.heard) == (b"", [])
        # Nor does that keep out who was expected.
        (await enters(door, Ear())).close()


async def test_one_that_answers_with_another_word_is_not_who_was_meant(doors: Doors) -> None:
    guest = Ear()
    with doors.expect(Host().meet) as door:
        assert door is not None
        assert await enter(replace(door, answer=b"a" * WORD_BYTES), guest) is None
    assert guest.heard == []


@pytest.mark.parametrize("silent", [True, False], ids=["a wall", "nobody"])
async def test_where_nobody_can_be_reached_there_is_no_lane(
    monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    monkeypatch.setattr("deployments.doors.CONNECT_S", 0.05)
    word = b"w" * WORD_BYTES
    server = await asyncio.start_server(_says_nothing, HERE, 0)
    port = server.sockets[0].getsockname()[1]
    if not silent:
        server.close()
        await server.wait_closed()
    assert await enter(Door(HERE, port, word, word), Ear()) is None
    server.close()


async def _says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    "prevent",
    [lambda patch: patch.setenv("RAY_USE_TLS", "1"), lambda patch: "192.0.2.1"],
    ids=["TLS", "no such address here"],
)
async def test_where_there_can_be_no_socket_nobody_is_expected(
    monkeypatch: pytest.MonkeyPatch, prevent: Callable[[pytest.MonkeyPatch], str | None]
) -> None:
    doors = Doors(prevent(monkeypatch) or HERE)
    await doors.opened()
    with doors.expect(Host().meet) as door:
        assert door is None
    doors.close()
