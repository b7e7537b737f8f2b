"""Why something cannot be started, or does not go on: errors that are one line for a terminal."""

from pathlib import Path


class LaunchError(Exception):
    """It cannot be started; the message is one line for a terminal."""


class Broken(LaunchError):
    """Something that was started failed; the logs say more than the message.

    Attributes:
        logs: where they are, once somebody has said so.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.logs: Path | None = None

    def __str__(self) -> str:
        message = super().__str__()
        return message if self.logs is None else f"{message} (logs: {self.logs})"


class StartFailed(Broken):
    """It did not come up."""


class RayDied(Broken):
    """A process of Ray has ended without which nothing goes on.

    Attributes:
        pid: its number.
        name: its name.
    """

    def __init__(self, pid: int, name: str) -> None:
        super().__init__(f"Ray has died: its process {name} ({pid}) has ended")
        self.pid = pid
        self.name = name
