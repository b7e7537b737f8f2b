"""Options: settings of a run, drawn from its seed. None of them may change an answer."""

from random import Random
from typing import Any


def options(rng: Random) -> dict[str, Any]:
    """Draw what a person may switch on."""
    cache = rng.random() < 0.8
    placements = ("most_free_blocks", "prefix_affinity") if cache else ("most_free_blocks",)
    return {
        "admission_preemption": rng.choice((0, 1, 1, 2)),
        "max_passes": rng.choice((0, 2)),
        "swap_gib": rng.choice((0.0, 0.05)),
        "overlap": rng.choice((False, True)),
        "prefix_cache": cache,
        "placement": rng.choice(placements),
        "prefill_chunk": rng.choice((16, 64, 512)),
    }


def flags(settings: dict[str, Any]) -> list[str]:
    """Return settings as the command line has them."""
    return [_flag(name.replace("_", "-"), value) for name, value in settings.items()]


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"
