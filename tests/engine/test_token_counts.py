"""engine.token_counts: what is counted piece by piece is what is counted at once."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine.token_counts import TokenCounts

few = st.lists(st.integers(0, 9), max_size=30)


@given(before=few, pieces=st.lists(few | st.lists(st.integers(0, 10**6), max_size=90), max_size=6))
def test_counts_of_a_growing_list(before: list[int], pieces: list[list[int]]) -> None:
    """Faults: tokens counted twice when nothing was added, or lost when there are many."""
    counts, tokens = TokenCounts(before), list[int]()
    for piece in pieces:
        tokens += piece
        for _ in range(2):
            ids, times = counts.of(tokens)
            expected = Counter(before + tokens)
            assert list(zip(ids.tolist(), times.tolist(), strict=True)) == list(expected.items())
