"""What reports say of a prefix cache, whatever becomes of them."""

from hypothesis import given
from hypothesis import strategies as st

from deployments.prefix_news import MOST_HELD, MOST_NEWS, PrefixNews, Told
from engine.prefix_log import PrefixLog


class Cache:
    """A real log, and the set that it is about."""

    def __init__(self) -> None:
        self.held: dict[int, None] = {}
        self._log = PrefixLog()
        self.listings = 0

    def store(self, key: int) -> None:
        if key not in self.held:
            self.held[key] = None
            self._log.stored(key)

    def evict(self, key: int) -> None:
        if key in self.held:
            del self.held[key]
            self._log.removed(key)

    def prefix_events(self) -> tuple[list[int], list[int]]:
        return self._log.take()

    def held_prefixes(self, most: int) -> list[int]:
        self._log.take()
        self.listings += 1
        return list(self.held)[:most]


def heard(known: set[int], told: Told) -> set[int]:
    """What a router knows after a report."""
    known = known if told.prefixes is None else set(told.prefixes)
    return (known | set(told.stored)) - set(told.removed)


_Events = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["store", "evict"]), st.integers(0, 9)),
        st.tuples(st.sampled_from(["report", "full", "lost report"]), st.just(0)),
    ),
    max_size=40,
)


@given(_Events)
def test_who_hears_every_report_knows_what_is_held(events: list[tuple[str, int]]) -> None:
    """Lost ones are made good, and cost one listing of all, however many they are."""
    cache = Cache()
    news, known, lost = PrefixNews(cache), set[int](), False
    arrivals = 0
    for what, key in [*events, ("report", 0), ("report", 0)]:
        if what in ("store", "evict"):
            getattr(cache, what)(key)
            continue
        told = news.collect(full=what == "full" or lost)
        assert not set(told.stored) & set(told.removed)
        lost = what == "lost report"
        if lost:
            news.lost()
            assert news.left
        else:
            news.arrived()
            known = heard(known, told)
            arrivals += 1
            assert news.left or known == set(cache.held)
        assert cache.listings <= arrivals + 1
    assert not news.left


def test_what_one_report_cannot_tell_goes_with_the_next() -> None:
    cache = Cache()
    news = PrefixNews(cache)
    for key in range(MOST_NEWS + 10):
        cache.store(key)
    first = news.collect(full=False)
    assert len(first.stored) == MOST_NEWS
    assert news.left
    cache.evict(MOST_NEWS + 5)  # of what is left
    cache.evict(3)  # of what was told
    second = news.collect(full=False)
    assert not news.left
    assert heard(heard(set(), first), second) == set(cache.held)


def test_a_full_report_tells_what_stays_longest_and_leaves_nothing_behind() -> None:
    cache = Cache()
    news = PrefixNews(cache)
    for key in range(MOST_HELD + 7):
        cache.store(key)
    news.collect(full=False)
    full = news.collect(full=True)
    assert full == Told(prefixes=tuple(range(MOST_HELD)))
    assert not news.left
    assert news.collect(full=False) == Told()
