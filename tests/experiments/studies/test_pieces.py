"""Stretches of a trace: the rate that was asked for, and the trace's own bursts."""

import pytest

from experiments.loads.load import Arrival, Load
from experiments.studies.pieces import piece, sample

# Three at once, then a pause.
BURSTS = Load("bursts", [Arrival(float(i // 3 * 6), 10 + i, 5, pieces=(i,)) for i in range(30)])


@pytest.mark.parametrize("number", range(4))
def test_a_piece_has_the_rate_and_the_length(number: int) -> None:
    made = piece(BURSTS, number, 4, rate=2.0, seconds=6.0)
    assert len(made.arrivals) == 12
    assert made.arrivals[0].at == 0
    assert made.seconds <= 6.0
    assert [one.at for one in made.arrivals] == sorted(one.at for one in made.arrivals)


def test_bursts_stay() -> None:
    made = piece(BURSTS, 0, 1, rate=1.0, seconds=9.0)
    assert [one.at for one in made.arrivals] == [0, 0, 0, 3, 3, 3, 6, 6, 6]


def test_pieces_differ_and_go_on_from_the_beginning_with_new_prompts() -> None:
    first, last = (piece(BURSTS, number, 3, rate=2.0, seconds=6.0) for number in (0, 2))
    assert first.arrivals[0].prompt_tokens == 10
    assert last.arrivals[0].prompt_tokens == 30
    assert last.arrivals[10].prompt_tokens == 10
    # The second time through the trace is not the same conversation.
    assert last.arrivals[10].pieces != first.arrivals[0].pieces


def test_a_piece_longer_than_the_trace() -> None:
    assert len(piece(BURSTS, 0, 1, rate=10.0, seconds=30.0).arrivals) == 300


def test_a_sample_is_from_all_over_and_comes_at_once() -> None:
    chosen = sample(BURSTS, 5).arrivals
    assert [one.prompt_tokens for one in chosen] == [10, 16, 22, 28, 34]
    assert {one.at for one in chosen} == {0.0}
    assert len(sample(BURSTS, 1000).arrivals) == 30
