"""OwnPolicies: the policies that an operator gives in place of ours, as they were read."""

import re
from dataclasses import dataclass
from typing import Final

from deployments.autoscaling.source import Source

_MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class OwnPolicies:
    """What is not ours.

    Attributes:
        named: the settings ``placement`` and ``autoscaling`` that they were read for.
        placement: chooses among replicas, in the router; None: one of ours does, or what it is
            is not known here.
        by_prefix: it looks at what prompts begin with.
        autoscaling: says how many replicas there should be, in Serve's controller; None as before.
    """

    named: tuple[str, str]
    placement: Source | None = None
    by_prefix: bool = False
    autoscaling: Source | None = None


def split(spec: str) -> tuple[str, str] | None:
    """Return file (``….py``) or module, and name, of a policy; None if that is not what it says."""
    where, _, name = spec.rpartition(":")
    if name.isidentifier() and (is_file(where) or _MODULE.fullmatch(where)):
        return where, name
    return None


def is_file(where: str) -> bool:
    """Whether it is a file's path, else a module's name."""
    return where.endswith(".py") and len(where) > len(".py")
