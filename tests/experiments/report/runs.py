"""Runs whose figures can be worked out by hand, and a strategy of any."""

from dataclasses import replace
from typing import Any, Final

from hypothesis import strategies as st

from experiments.simulator.outcome import Outcome, Run, Sample

NASTY: Final = "$a_b$ <script src=\"http://x/y.js\">alert('&')</script> \x07| π"


def answered(index: int, at: float, ttft: float, tpot: float, **more: Any) -> Outcome:
    """A request with five tokens."""
    first = at + ttft
    return Outcome(
        index,
        at,
        more.pop("priority", 0),
        more.pop("tenant", "a"),
        prompt_tokens=10,
        output_tokens=5,
        status="ok",
        placed_at=at + ttft / 2,
        first_token_at=first,
        last_token_at=first + 4 * tpot,
        replica="r1",
        attempts=1,
        cached_tokens=4,
        longest_gap_s=tpot,
        **more,
    )


def sample(at: float, **more: Any) -> Sample:
    """A fleet of two replicas with nothing to do."""
    idle = Sample(at, 2, 2, 0, 0, 0.0, 0, 0, 100, 100)
    return replace(idle, **more)


def run(name: str = "a run", **more: Any) -> Run:
    """Four requests: in time, too late, refused, broken off."""
    outcomes = [
        answered(0, 0.0, 0.5, 0.02, priority=5),
        answered(1, 1.0, 3.0, 0.04, tenant="b"),
        Outcome(2, 2.0, 0, "b", 10, status="refused", reason="rate_limit_error/queue_full"),
        Outcome(3, 3.0, 0, "a", 10, 2, first_token_at=3.5, last_token_at=3.6, attempts=2),
    ]
    samples = [sample(0.0), sample(5.0, queued=3, oldest_wait_s=1.5, free_blocks=25), sample(9.0)]
    made = Run(
        name=name,
        kind="simulated",
        load="a load",
        settings={"replicas": 2, "policy": None, "overlap": True, "network_s": 0.0005},
        outcomes=outcomes,
        samples=samples,
        seconds=10.0,
        replica_s=20.0,
        busy_s=5.0,
        counts={"preemptions": 3, "steps": 1234.0},
    )
    return replace(made, **more)


_seconds = st.floats(0, 1e6)
_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_outcomes = st.builds(
    Outcome,
    index=st.integers(0, 2**40),
    at=_seconds,
    priority=st.integers(-3, 3),
    tenant=_names,
    prompt_tokens=st.integers(1, 10**6),
    output_tokens=st.integers(0, 10**6),
    status=st.sampled_from(["ok", "refused", "failed"]),
    reason=_names,
    placed_at=st.none() | _seconds,
    first_token_at=st.none() | _seconds,
    last_token_at=st.none() | _seconds,
    replica=_names,
    attempts=st.integers(0, 5),
    cached_tokens=st.integers(0, 10**6),
    longest_gap_s=_seconds,
)
_counts = st.integers(0, 10**6)
_samples = st.builds(Sample, _seconds, _counts, _counts, _counts, _counts, _seconds, *[_counts] * 4)


@st.composite
def some_runs(draw: st.DrawFn) -> list[Run]:
    """Up to three runs of anything at all, but for their names."""
    names = draw(st.lists(_names, min_size=1, max_size=3, unique=True))
    return [
        run(
            name,
            kind=draw(st.sampled_from(["simulated", "measured"])),
            outcomes=draw(st.lists(_outcomes, max_size=6)),
            samples=draw(st.lists(_samples, max_size=4)),
            settings=draw(
                st.dictionaries(_names, st.none() | st.booleans() | st.integers() | _names)
            ),
            seconds=draw(_seconds),
        )
        for name in names
    ]
