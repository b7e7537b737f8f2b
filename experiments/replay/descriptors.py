"""File descriptors: one for each connection."""

import contextlib
import resource

_OTHERS = 64
"""What the process needs besides: files, the event loop, what is asked for the metrics."""


class TooManyConnections(ValueError):
    """More connections than the system lets a process have."""


def connections(wanted: int | None, requests: int) -> int:
    """Return how many connections there may be at a time; raises the process's limit for them.

    Args:
        wanted: so many; None for one for each request, or as many as there can be.
        requests: of the load.

    Raises:
        TooManyConnections: the system does not allow what is wanted.
    """
    asked = requests if wanted is None else wanted
    room = _raise_limit(asked + _OTHERS) - _OTHERS
    if wanted is not None and wanted > room:
        raise TooManyConnections(
            f"--max-connections must be at most {max(room, 0)} here, not {wanted}: the limit of "
            "file descriptors is too low (ulimit -Hn)"
        )
    return max(1, min(asked, room))


def _raise_limit(wanted: int) -> int:
    """Return the limit, after raising it towards what is wanted as far as is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft
