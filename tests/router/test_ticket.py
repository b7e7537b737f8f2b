import pytest

from router.ticket import Ticket


@pytest.mark.parametrize(("now", "most"), [(0, 4), (5, 4), (-1, 2)])
def test_a_ticket_that_could_never_be_accounted_for_is_a_mistake_of_the_caller(
    now: int, most: int
) -> None:
    with pytest.raises(ValueError, match="blocks_now"):
        Ticket("a", 0, 0, now, most)


def test_a_ticket_carries_a_bounded_number_of_hashes() -> None:
    assert Ticket("a", 0, 0, 1, 1, prefix=tuple(range(128)))
    with pytest.raises(ValueError, match="prefix of 129 hashes"):
        Ticket("a", 0, 0, 1, 1, prefix=tuple(range(129)))
