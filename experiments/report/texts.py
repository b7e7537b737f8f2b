"""How a report writes numbers: the same digits for the same value, everywhere."""

from unicodedata import category

NOTHING = "-"
"""Stands where there is no value."""


def number(value: float | None) -> str:
    """Return three digits or more, with commas: 12,345; 123; 12.3; 1.23; 0.123."""
    if value is None:
        return NOTHING
    size = abs(value)
    if size == 0 or size >= 99.95 or (value == int(value) and size >= 10):
        return f"{value:,.0f}"
    if size < 0.0005:
        return f"{value:.1g}"
    return f"{value:.{1 if size >= 9.995 else 2 if size >= 0.9995 else 3}f}"


def count(value: float | None) -> str:
    """Return a whole number with commas; a fraction keeps its digits."""
    return f"{value:,.0f}" if value is not None and value == int(value) else number(value)


def share(value: float | None) -> str:
    """Return percent with one decimal. All and none are only said of exactly that."""
    if value is None:
        return NOTHING
    if value in (0, 1):
        return f"{value:.0%}"
    if 0 < value < 0.0005:
        return "<0.1%"
    if 0.9995 <= value < 1:
        return ">99.9%"
    return f"{value:.1%}"


def milliseconds(seconds: float | None) -> str:
    """Return seconds as milliseconds, without the unit."""
    return number(None if seconds is None else seconds * 1000)


def setting(value: object) -> str:
    """Return a setting as a command line would spell it."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def plain(text: str) -> str:
    """Return the text without what neither XML nor a terminal can take: control characters,
    halves of letters, code points that mean nothing.
    """
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if category(letter) in ("Cc", "Cn", "Cs") else letter
        for letter in text
    )
