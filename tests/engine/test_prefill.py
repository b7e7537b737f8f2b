import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.prefill import Chunked, PrefillPolicy, WholePrompt
from engine.request import InvalidParam

positive = st.integers(1, 50)


@pytest.mark.parametrize(
    ("remaining", "budget", "alone", "length"),
    [(5, 8, False, 5), (8, 8, False, 8), (9, 8, False, 0), (9, 8, True, 9), (1, 1, True, 1)],
)
def test_a_whole_prompt_is_never_cut(remaining: int, budget: int, alone: bool, length: int) -> None:
    """Fault: a prompt that is longer than the budget is cut, or waits for ever."""
    assert WholePrompt().chunk_len(remaining, budget, alone) == length


@pytest.mark.parametrize(
    ("remaining", "budget", "length"), [(5, 8, 4), (3, 8, 3), (9, 2, 2), (4, 4, 4)]
)
def test_a_chunk_keeps_to_all_three_limits(remaining: int, budget: int, length: int) -> None:
    """Fault: a chunk exceeds what is left, the budget, or the largest chunk."""
    assert Chunked(4).chunk_len(remaining, budget, alone=True) == length
    assert Chunked(4).chunk_len(remaining, budget, alone=False) == length


@settings(max_examples=80, deadline=None)
@given(positive, positive, st.integers(1, 20))
def test_every_prompt_gets_done(remaining: int, budget: int, largest: int) -> None:
    """Fault: some prompt is granted nothing in a step of its own: a silent hang."""
    policies: list[PrefillPolicy] = [WholePrompt(), Chunked(largest)]
    for policy in policies:
        assert 1 <= policy.chunk_len(remaining, budget, alone=True) <= remaining
        assert 0 <= policy.chunk_len(remaining, budget, alone=False) <= min(remaining, budget)


@pytest.mark.parametrize("largest", [0, -1, 1.5, True])
def test_a_chunk_that_makes_no_progress_is_refused(largest: int) -> None:
    """Fault: chunks of nothing are planned for ever."""
    with pytest.raises(InvalidParam, match="max_chunk"):
        Chunked(largest)
