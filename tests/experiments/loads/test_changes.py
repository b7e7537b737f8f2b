"""Changes of a load: what they leave alone as well as what they change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.loads.changes import capped, repeated, scaled, window
from experiments.loads.errors import LoadError
from experiments.loads.load import Arrival, Load

LOAD = Load(
    "three",
    [Arrival(0.0, 100, 10, 3, "a", (0, 1)), Arrival(1.0, 300, 1), Arrival(4.0, 5, 50, pieces=(0,))],
    piece_tokens=64,
)


def test_a_window_begins_at_its_start_and_ends_before_its_end() -> None:
    assert window(LOAD, 1.0, 3.0).arrivals == [Arrival(0.0, 300, 1)]
    assert [one.at for one in window(LOAD, 0.5).arrivals] == [0.5, 3.5]
    assert window(LOAD) == LOAD


def test_a_window_without_requests_is_an_error() -> None:
    with pytest.raises(LoadError, match=r"from 1\.5 to 3\.5 s: it has 3, the last at 4 s"):
        window(LOAD, 1.5, 2.0)
    with pytest.raises(LoadError, match="three has no request from 5 s on: it has 3"):
        window(LOAD, 5.0)


def test_a_faster_load_has_the_same_requests_closer_together() -> None:
    faster = scaled(LOAD, rate=2.0)
    assert [one.at for one in faster.arrivals] == [0.0, 0.5, 2.0]
    assert [one.prompt_tokens for one in faster.arrivals] == [100, 300, 5]
    assert faster.piece_tokens == 64


def test_shorter_prompts_have_shorter_pieces_and_at_least_a_token() -> None:
    """Pieces that stay as long would make more of each prompt shared than the trace says."""
    short = scaled(LOAD, prompt=0.1)
    assert [one.prompt_tokens for one in short.arrivals] == [10, 30, 1]
    assert [one.output_tokens for one in short.arrivals] == [10, 1, 50]
    assert short.piece_tokens == 6
    assert short.arrivals[0].pieces == (0, 1)
    outputs = scaled(LOAD, output=0.01)
    assert [one.output_tokens for one in outputs.arrivals] == [1, 1, 1]
    assert outputs.piece_tokens == 64


def test_a_repeated_load_goes_on_a_mean_gap_later_with_other_words() -> None:
    """The same names again would all be found in the prefix cache from the second time on."""
    twice = repeated(LOAD, 2)
    assert [one.at for one in twice.arrivals] == [0.0, 1.0, 4.0, 6.0, 7.0, 10.0]
    assert [one.pieces for one in twice.arrivals] == [(0, 1), (), (0,), (2, 3), (), (2,)]
    assert repeated(LOAD, 1) == LOAD
    with pytest.raises(LoadError, match="one cannot be repeated: all its requests come at once"):
        repeated(Load("one", LOAD.arrivals[:1]), 2)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(2, 200))
def test_a_capped_request_fits_and_gives_up_no_more_than_it_must(
    prompt: int, output: int, most: int
) -> None:
    load, cut = capped(Load("one", [Arrival(0.0, prompt, output)]), most)
    [one] = load.arrivals
    assert one.prompt_tokens + one.output_tokens == min(prompt + output, most)
    assert cut == (prompt + output > most)
    # Each keeps half at least, if it has so much.
    assert one.prompt_tokens >= min(prompt, most // 2)
    assert one.output_tokens >= min(output, most // 2)
