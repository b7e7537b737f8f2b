"""Why something cannot be started, or does not go on: errors that are one line for a terminal."""


class LaunchError(Exception):
    """It cannot be started; the message is one line for a terminal."""


class Broken(LaunchError):
    """Something that was started failed; the logs say more than the message."""


class StartFailed(Broken):
    """It did not come up."""


class RayDied(Broken):
    """A process of Ray has ended without which nothing goes on.

    Attributes:
        pid: its number.
        name: its name.
    """

    def __init__(self, pid: int, name: str) -> None:
        super().__init__(pid, name)
        self.pid = pid
        self.name = name

    def __str__(self) -> str:
        return f"Ray has died: its process {self.name} ({self.pid}) has ended"
