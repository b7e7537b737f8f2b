"""The tokens of prompts: what they have in common is what their pieces say, and no more."""

from hypothesis import given
from hypothesis import strategies as st

from experiments.loads.load import Arrival, Load
from experiments.loads.prompts import prompt_of

VOCAB = 50_000

arrivals = st.builds(
    Arrival,
    at=st.just(0.0),
    prompt_tokens=st.integers(1, 200),
    output_tokens=st.just(1),
    pieces=st.lists(st.integers(0, 3), max_size=8).map(tuple),
)
loads = st.builds(
    Load,
    name=st.just("any"),
    arrivals=st.lists(arrivals, min_size=1, max_size=6),
    # Long enough that two pieces do not have the same tokens by chance.
    piece_tokens=st.integers(8, 64),
)


def alike(one: list[int], other: list[int]) -> int:
    """How many tokens two prompts have in common before they differ."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def said_alike(one: Arrival, other: Arrival, size: int) -> int:
    """The same from what the load says, in the plainest words: token by token."""
    for place in range(min(one.prompt_tokens, other.prompt_tokens)):
        piece = place // size
        in_one, in_other = one.pieces[piece : piece + 1], other.pieces[piece : piece + 1]
        if not in_one or in_one != in_other:
            return place
    return min(one.prompt_tokens, other.prompt_tokens)


@given(loads)
def test_two_prompts_begin_alike_as_far_as_their_pieces_do(load: Load) -> None:
    """A prefix cache that finds more or less than the trace says would flatter or blame."""
    prompts = [prompt_of(load, index, VOCAB) for index in range(len(load.arrivals))]
    for index, (arrival, prompt) in enumerate(zip(load.arrivals, prompts, strict=True)):
        assert len(prompt) == arrival.prompt_tokens
        assert all(0 <= token < VOCAB for token in prompt)
        for later in range(index + 1, len(prompts)):
            common = said_alike(arrival, load.arrivals[later], load.piece_tokens)
            found = alike(prompt, prompts[later])
            # One token can be the same by chance, a few in a row cannot.
            assert common <= found <= common + 3


@given(loads, st.integers(1, 7))
def test_a_prompt_is_the_same_every_time_and_fits_any_vocabulary(load: Load, vocab: int) -> None:
    last = len(load.arrivals) - 1
    assert prompt_of(load, last, VOCAB) == prompt_of(load, last, VOCAB)
    assert max(prompt_of(load, last, vocab)) < vocab


def test_the_same_request_at_another_place_has_another_rest() -> None:
    """Else all requests of a trace without pieces would share one prefix."""
    one = Arrival(0.0, 40, 1, pieces=(7,))
    load = Load("twice", [one, one], piece_tokens=16)
    assert alike(prompt_of(load, 0, VOCAB), prompt_of(load, 1, VOCAB)) == 16


def test_the_tokens_are_those_of_last_year() -> None:
    """Recorded results hold only as long as the prompts do."""
    load = Load("fixed", [Arrival(0.0, 6, 1, pieces=(2**70 + 5,))], piece_tokens=4)
    assert prompt_of(load, 0, VOCAB) == [11566, 20344, 17225, 45529, 11954, 24301]
