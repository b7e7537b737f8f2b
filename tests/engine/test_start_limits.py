"""engine.start_limits against a plain dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from engine.start_limits import StartLimits

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(-5, 30)),
        st.tuples(st.just("discard"), st.integers(0, 40)),
        st.tuples(st.just("pop"), st.integers(-5, 30)),
    ),
    max_size=150,
)


@given(steps)
def test_those_whose_tick_has_passed_come_out_once_and_earliest_first(
    steps: list[tuple[str, int]],
) -> None:
    limits, plain = StartLimits(), dict[int, int]()
    next_id = 0
    for kind, value in steps:
        if kind == "add":
            limits.add(next_id, value)
            plain[next_id] = value
            next_id += 1
        elif kind == "discard":
            limits.discard(value)
            plain.pop(value, None)
        else:
            over = sorted((tick, id) for id, tick in plain.items() if tick < value)
            assert limits.pop_over(value) == [id for _, id in over]
            for _, id in over:
                del plain[id]
