"""Pieces: stretches of a trace, brought to the rate that a study asks for."""

from dataclasses import replace

from experiments.loads.changes import repeated
from experiments.loads.load import Arrival, Load


def piece(load: Load, number: int, of: int, rate: float, seconds: float) -> Load:
    """Return a stretch of a load, faster or slower, so that it has just this mean rate.

    The stretch has as many requests as come in ``seconds`` at ``rate``; time within it is
    stretched evenly, so bursts stay. Stretches of different numbers begin at equal distances in
    the load, which goes on from its beginning where it ends. They overlap if they are long.

    Args:
        load: of two requests at least, not all at once.
        number: which stretch, from 0.
        of: how many there are, > ``number``.
        rate: requests/s, > 0.
        seconds: how long it is to last, > 0.
    """
    wanted = max(2, round(rate * seconds))
    first = number * len(load.arrivals) // of
    times = -(-(first + wanted + 1) // len(load.arrivals))
    arrivals = repeated(load, times).arrivals[first : first + wanted + 1]
    # What comes next ends the stretch, so that the last gap counts as well.
    begin, end = arrivals[0].at, arrivals[-1].at
    scale = wanted / rate / (end - begin) if end > begin else 0.0
    moved = [replace(one, at=(one.at - begin) * scale) for one in arrivals[:-1]]
    return replace(load, arrivals=moved)


def sample(load: Load, requests: int) -> Load:
    """Return so many requests from all over a load, all of which come at once."""
    every = max(1, len(load.arrivals) // requests)
    chosen: list[Arrival] = [replace(one, at=0.0) for one in load.arrivals[::every][:requests]]
    return replace(load, arrivals=chosen)
