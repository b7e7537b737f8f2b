"""Changes of a load: a window of it, faster, longer, again, or cut to what a model takes."""

from collections.abc import Sequence
from dataclasses import replace

from experiments.loads.errors import LoadError
from experiments.loads.load import Arrival, Load


def window(load: Load, start: float = 0.0, seconds: float | None = None) -> Load:
    """Return what comes from ``start`` on, for ``seconds`` or to the end; it begins at 0.

    Raises:
        LoadError: nothing comes then.
    """
    if start == 0 and seconds is None:
        return load
    end = float("inf") if seconds is None else start + seconds
    arrivals = [replace(a, at=a.at - start) for a in load.arrivals if start <= a.at < end]
    if not arrivals:
        span = f"from {start:g} s on" if seconds is None else f"from {start:g} to {end:g} s"
        raise LoadError(
            f"{load.name} has no request {span}: it has {len(load.arrivals)}, "
            f"the last at {load.seconds:g} s"
        )
    return replace(load, arrivals=arrivals)


def repeated(load: Load, times: int) -> Load:
    """Return a load so many times, one after the other.

    Between the last request and the next first one is a mean gap. Pieces have new names each
    time: who comes again later does not send the same words.

    Args:
        load: of two requests at least, not all at once, if it is to be repeated.
        times: at least 1.

    Raises:
        LoadError: it is to be repeated, and how long it lasts cannot be known.
    """
    if times == 1:
        return load
    arrivals = load.arrivals
    if not load.seconds > arrivals[0].at:
        raise LoadError(f"{load.name} cannot be repeated: all its requests come at once")
    span = load.seconds - arrivals[0].at
    period = span + span / (len(arrivals) - 1)
    names = 1 + max((max(a.pieces, default=-1) for a in arrivals), default=-1)
    return replace(
        load,
        arrivals=[_later(a, period * k, names * k) for k in range(times) for a in arrivals],
    )


def _later(arrival: Arrival, seconds: float, names: int) -> Arrival:
    pieces = tuple(name + names for name in arrival.pieces)
    return replace(arrival, at=arrival.at + seconds, pieces=pieces)


def scaled(load: Load, rate: float = 1.0, prompt: float = 1.0, output: float = 1.0) -> Load:
    """Return a load that comes faster and has other lengths, each at least 1 token.

    Args:
        load: which.
        rate: requests in a second become so many times as many.
        prompt: so do tokens of prompts, and of the pieces that they begin with.
        output: so do tokens of answers.
    """
    if rate == prompt == output == 1:
        return load
    return replace(
        load,
        arrivals=[
            replace(
                a,
                at=a.at / rate,
                prompt_tokens=max(1, round(a.prompt_tokens * prompt)),
                output_tokens=max(1, round(a.output_tokens * output)),
            )
            for a in load.arrivals
        ],
        piece_tokens=max(1, round(load.piece_tokens * prompt)),
    )


def capped(load: Load, most: int) -> tuple[Load, int]:
    """Return a load of which no request is longer than a model takes, and how many were cut.

    A request that is too long keeps up to half of ``most`` for each of prompt and answer, and
    what one of them does not need goes to the other.

    Args:
        load: which.
        most: tokens of a prompt and its answer together, at least 2.
    """
    arrivals = [_cut(a, most) for a in load.arrivals]
    return replace(load, arrivals=arrivals), _differing(arrivals, load.arrivals)


def _cut(arrival: Arrival, most: int) -> Arrival:
    if arrival.prompt_tokens + arrival.output_tokens <= most:
        return arrival
    output = min(arrival.output_tokens, most - min(arrival.prompt_tokens, most // 2))
    prompt = min(arrival.prompt_tokens, most - output)
    return replace(arrival, prompt_tokens=prompt, output_tokens=output)


def _differing(these: Sequence[Arrival], those: Sequence[Arrival]) -> int:
    return sum(this is not that for this, that in zip(these, those, strict=True))
