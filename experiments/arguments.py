"""Arguments of a command line: numbers, each with its limits, and what does not go together."""

import argparse
import math
from collections.abc import Callable


class CombinationError(ValueError):
    """Two options do not go together; one line."""


def number(least: float, most: float) -> Callable[[str], float]:
    """Return what reads a number from ``least`` to ``most``, for argparse's ``type``."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be from {least:g} to {most:g}, not {text!r}")
        return value

    return read


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return what reads a whole number from ``least`` to ``most``, for argparse's ``type``."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            limit = f"a whole number from {least} to {most}"
            raise argparse.ArgumentTypeError(f"must be {limit}, not {text!r}")
        return value

    return read
