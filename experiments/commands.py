"""Commands: what those of the experiments have in common, which is how they speak and end."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from experiments.arguments import CombinationError
from experiments.report.needs import MissingLibrary

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command. Results go to stdout, and what it says to stderr.

    Attributes:
        name: what every line begins with, such as "tidegate simulate".
    """

    name: str

    def say(self, text: str) -> None:
        """Tell the user one line."""
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    def run(self, work: Callable[[], int], interrupted: str) -> int:
        """Return the exit code of the work; what ends it early is said in one line.

        Args:
            work: all that may fail; returns the exit code.
            interrupted: what is said after Ctrl-C, if the work does not see to that itself.

        Returns:
            The work's, 2 if the options do not go together, 130 after Ctrl-C, else 1.
        """
        try:
            return work()
        except CombinationError as error:
            self.say(str(error))
            return 2
        except (ValueError, MissingLibrary) as error:  # of all of them, one line each
            self.say(str(error))
        except OSError as error:
            self.say(f"{error.filename or 'a file'}: {error.strerror or error}")
        except KeyboardInterrupt:
            self.say(interrupted)
            return INTERRUPTED
        return 1
