"""How often the parts of a deployment look after something. Seconds."""

from typing import Final

TICK_S: Final = 1.0
"""The router lets time have its effects, and tells replicas what the autoscaler is to know."""

COUNT_S: Final = 1.0
"""A gateway hands over what it counted."""

PROBE_S: Final = 1.0
"""A replica looks whether it is still wanted: a call costs it 2 ms of CPU time, and there is hardly
ever news."""

MISSES: Final = 3
AGAIN_S: Final = 0.3
"""Serve takes a replica out for a moment while it changes its settings: that is not the end.

So it is asked so many times, so far apart, before that is believed.
"""

HEALTH_S: Final = 1.0
HEALTH_TIMEOUT_S: Final = 10.0
"""Serve asks replicas how they are, and how long one may take to answer: one that is dead is
noticed and replaced within seconds."""

CONTROL_S: Final = 0.5
"""Serve's controller looks after everything: ray.env tells it the same."""
