from hypothesis import given, settings
from hypothesis import strategies as st

from router.silence import Silence


def test_who_is_silent_for_too_long_is_overdue_once() -> None:
    silence = Silence(suspect_after_s=2.0, lost_after_s=15.0)
    silence.heard("a", 0.0)
    silence.heard("b", 1.0)
    assert silence.overdue(2.0) == []
    assert silence.overdue(2.1) == ["a"]
    assert silence.overdue(2.2) == []
    silence.heard("a", 2.5)
    assert silence.silent(15.5) == ()
    assert silence.overdue(4.0) == ["b"]
    assert silence.overdue(5.0) == ["a"]


def test_the_silent_are_named_until_they_are_heard_or_forgotten() -> None:
    silence = Silence(suspect_after_s=2.0, lost_after_s=15.0)
    for second, name in enumerate("abc"):
        silence.heard(name, float(second))
    assert silence.silent(14.9) == ()
    assert silence.silent(16.0) == ("a", "b")
    assert silence.silent(16.0) == ("a", "b")
    silence.heard("a", 16.0)
    silence.forget("b")
    assert silence.overdue(30.0) == ["c", "a"]
    assert silence.silent(30.0) == ("c",)


def test_a_nap_is_a_gap_between_two_ticks() -> None:
    for gap, silent in ((4.9, ("a",)), (5.1, ())):
        silence = Silence(suspect_after_s=2.0, lost_after_s=15.0)
        silence.heard("a", 0.0)
        silence.tick(10.2)
        silence.overdue(10.2 + gap)
        assert silence.silent(10.2 + gap) == silent


def test_short_patience_makes_short_naps_but_no_tick_is_one() -> None:
    silence = Silence(suspect_after_s=0.5, lost_after_s=1.0)
    silence.heard("a", 0.0)
    silence.tick(0.0)
    silence.overdue(1.9)  # a tick that comes a little late
    assert silence.silent(1.9) == ("a",)
    silence.overdue(2.1)
    assert silence.silent(2.1) == ()


def test_after_a_nap_all_silences_begin_anew_but_who_was_overdue_stays_so() -> None:
    silence = Silence(suspect_after_s=2.0, lost_after_s=15.0)
    silence.heard("a", 0.0)
    silence.heard("b", 3.0)
    silence.tick(3.0)
    assert silence.overdue(3.0) == ["a"]
    assert silence.overdue(63.0) == []
    assert silence.silent(63.0) == ()
    silence.tick(63.0)
    assert silence.overdue(65.1) == ["b"]
    for second in range(66, 79):
        silence.tick(float(second))
        assert silence.overdue(float(second)) == []
    assert silence.silent(77.9) == ()
    assert silence.silent(78.0) == ("a", "b")


_Events = st.lists(
    st.tuples(
        st.sampled_from([0.1, 0.7, 1.0, 2.0, 4.0, 30.0]),
        st.sampled_from(["hear", "hear", "tick", "tick", "look", "forget"]),
        st.sampled_from("abcd"),
    ),
    max_size=80,
)


@settings(max_examples=200, deadline=None)
@given(_Events)
def test_it_agrees_with_one_that_looks_at_everybody(events: list[tuple[float, str, str]]) -> None:
    silence = Silence(suspect_after_s=2.0, lost_after_s=9.0)
    now, ticked = 0.0, 0.0
    since: dict[str, float] = {}
    overdue: set[str] = set()
    silence.tick(now)
    for seconds, event, name in events:
        now += seconds
        if now - ticked > 3.0:
            since, ticked = dict.fromkeys(since, now), now
        late = {name for name, at in since.items() if now - at > 2.0} - overdue
        overdue |= late
        assert set(silence.overdue(now)) == late
        if event == "hear":
            silence.heard(name, now)
            since[name] = now
            overdue.discard(name)
        elif event == "forget":
            silence.forget(name)
            since.pop(name, None)
            overdue.discard(name)
        elif event == "tick":
            silence.tick(now)
            ticked = now
        assert set(silence.silent(now)) == {name for name, at in since.items() if now - at >= 9.0}
