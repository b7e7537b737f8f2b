"""What a report's formats need that not every installation has."""

import importlib.util
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

Rows: TypeAlias = Literal["csv", "parquet"]
Picture: TypeAlias = Literal["png", "svg"]
Format: TypeAlias = Rows | Picture | Literal["html"]

_NEEDS: Final[dict[Format, str]] = {
    "parquet": "polars",
    "png": "matplotlib",
    "svg": "matplotlib",
    "html": "matplotlib",
}


class MissingLibrary(ImportError):
    """A format needs a library that is not installed; the message says how to get it."""


def require(formats: Iterable[Format]) -> None:
    """Make sure that these formats can be written; best asked before a long run.

    Raises:
        MissingLibrary: one cannot.
    """
    for format in formats:
        library = _NEEDS.get(format)
        if library is not None and importlib.util.find_spec(library) is None:
            raise MissingLibrary(
                f"{format} needs {library}: pip install 'tidegate[experiments]', "
                "or ask for other formats"
            )
