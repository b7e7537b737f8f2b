"""Page: a page whose tables and plots are made by a command, and whose words are not.

What is made stands between two comments, ``<!-- made: NAME -->`` and ``<!-- end: NAME -->``, and
nothing else is ever changed.
"""

import re
from collections.abc import Mapping
from typing import Final

_MARK: Final = re.compile(r"<!-- (made|end): ([a-z0-9-]+) -->")


class PageError(ValueError):
    """A page's marks are not in order; the message says which."""


def page(title: str, parts: Mapping[str, str]) -> str:
    """Return a new page with all parts, and no words beside them."""
    return f"# {title}\n\n" + "\n".join(_marked(name, text) for name, text in parts.items())


def replaced(text: str, parts: Mapping[str, str]) -> str:
    """Return the page with new parts in the place of old ones of the same names.

    A part that the page has no place for is put at its end.

    Args:
        text: of the page.
        parts: texts by name.

    Raises:
        PageError: a mark has no counterpart, a part is there twice, or nobody makes it.
    """
    places = _places(text)
    for name in places:
        if name not in parts:
            raise PageError(f"the page has a place for {name!r}, of which nothing is made")
    pieces: list[str] = []
    done = 0
    for name, (begin, end) in places.items():
        pieces += [text[done:begin], _marked(name, parts[name]).rstrip("\n")]
        done = end
    pieces.append(text[done:])
    pieces += ["\n" + _marked(name, made) for name, made in parts.items() if name not in places]
    return "".join(pieces)


def _places(text: str) -> dict[str, tuple[int, int]]:
    """Return where each part is, from the beginning of its first mark to the end of its second."""
    places: dict[str, tuple[int, int]] = {}
    begun: tuple[str, int] | None = None
    for mark in _MARK.finditer(text):
        kind, name = mark.groups()
        line = text.count("\n", 0, mark.start()) + 1
        if kind == "made":
            if begun is not None or name in places:
                raise PageError(f"line {line}: {mark[0]} stands within a part, or twice")
            begun = (name, mark.start())
        else:
            if begun is None or begun[0] != name:
                raise PageError(f"line {line}: {mark[0]} ends what has not begun")
            places[name] = (begun[1], mark.end())
            begun = None
    if begun is not None:
        raise PageError(f"the part {begun[0]!r} has no end")
    return places


def _marked(name: str, text: str) -> str:
    return f"<!-- made: {name} -->\n\n{text.strip()}\n\n<!-- end: {name} -->\n"
