from itertools import pairwise

from router.prefix_depths import DEPTHS, MOST_TOLD, thinned


def test_all_are_told_at_first_then_eight_in_every_doubling() -> None:
    assert DEPTHS[:16] == tuple(range(1, 17))
    assert DEPTHS[16:24] == (18, 20, 22, 24, 26, 28, 30, 32)
    assert len(DEPTHS) == MOST_TOLD
    assert DEPTHS[-1] == 262_144


def test_little_of_a_long_prefix_goes_unseen() -> None:
    for shorter, longer in pairwise(DEPTHS):
        assert longer - shorter <= max(1, shorter // 8)


def test_the_hashes_are_those_of_the_depths() -> None:
    for blocks in (0, 1, 15, 16, 17, 100, 300_000):
        told = thinned(range(1, blocks + 1))
        assert told == tuple(depth for depth in DEPTHS if depth <= blocks)
        for before in (0, 1, 16, 17, 99):
            if before <= blocks:
                more = thinned(range(before + 1, blocks + 1), before)
                assert thinned(range(1, before + 1)) + more == told
