"""What is wrong with a load that was asked for."""


class LoadError(ValueError):
    """A load cannot be had; the message is one line."""


class SpecError(LoadError):
    """A load's or a rule's text is wrong; the message names the part, its value and the limit."""


class TraceError(LoadError):
    """A trace cannot be read.

    Attributes:
        path: the file.
        line: its line, from 1; None for the whole file.
        field: the column or key; empty for a whole line or file.
        value: what is there, as it is written; None if nothing is.
        limit: what it must be.
    """

    def __init__(
        self, path: str, line: int | None, field: str, value: str | None, limit: str
    ) -> None:
        self.path, self.line, self.field, self.value, self.limit = path, line, field, value, limit
        where = path if line is None else f"{path}:{line}"
        what = f"'{field}' must be {limit}" if field else f"must be {limit}"
        super().__init__(f"{where}: {what}" + ("" if value is None else f", not {value}"))
