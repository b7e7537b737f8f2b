"""One end of a lane, with a transport that a test looks into."""

import asyncio
import pickle
from typing import Any

from deployments.lane import WORD_BYTES, Lane

WORD = b"w" * WORD_BYTES


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.wrote = bytearray()
        self.aborted = self.closed = False

    def write(self, data: Any) -> None:
        self.wrote += data

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closed = True


class Ear:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def came(self, message: Any) -> None:
        self.heard.append(message)

    def room(self) -> None:
        self.heard.append("room")

    def ended(self) -> None:
        self.heard.append("ended")


class Bomb:
    """Goes off where it is unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("raise AssertionError('a stranger was listened to')",)


def lane_to(ear: Ear) -> tuple[Lane, FakeTransport]:
    lane, transport = Lane(lambda _, word: ear if word == WORD else None), FakeTransport()
    lane.connection_made(transport)
    return lane, transport


def test_messages_come_whole_and_in_order_however_they_are_cut() -> None:
    sender, wire = lane_to(Ear())
    messages = [(), ("a", (1, 2), None), "x" * 1000]
    sender.show(WORD)
    for message in messages:
        sender.send(message)
    for size in (1, 7, 33, len(wire.wrote)):
        ear = Ear()
        lane, _ = lane_to(ear)
        for at in range(0, len(wire.wrote), size):
            lane.data_received(bytes(wire.wrote[at : at + size]))
        assert ear.heard == messages


def test_who_does_not_show_the_word_is_not_listened_to() -> None:
    ear = Ear()
    lane, transport = lane_to(ear)
    lane.data_received(b"s" * WORD_BYTES + len(pickle.dumps(Bomb())).to_bytes(8, "little"))
    assert transport.aborted
    lane.data_received(WORD[:-1])
    lane.connection_lost(None)
    assert ear.heard == []


def test_who_says_nothing_is_turned_away_and_who_is_known_is_not() -> None:
    lane, transport = lane_to(Ear())
    lane.turn_away()
    assert transport.aborted
    lane, transport = lane_to(Ear())
    lane.data_received(WORD)
    lane.turn_away()
    assert not transport.aborted


def test_the_end_is_heard_once_and_what_is_sent_after_it_is_lost() -> None:
    ear = Ear()
    lane, transport = lane_to(ear)
    lane.data_received(WORD)
    lane.close()
    assert transport.closed
    lane.connection_lost(None)
    lane.send("late")
    lane.close()
    assert (ear.heard, transport.wrote) == (["ended"], b"")


def test_one_that_cannot_send_says_so_and_when_it_can_again() -> None:
    ear = Ear()
    lane, _ = lane_to(ear)
    lane.data_received(WORD)
    assert not lane.full
    lane.pause_writing()
    assert lane.full
    lane.resume_writing()
    assert (lane.full, ear.heard) == (False, ["room"])
