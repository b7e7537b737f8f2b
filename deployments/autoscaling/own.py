"""An autoscaling policy of the operator's: how it is made from its text, and what it may answer."""

import inspect
from types import ModuleType

from deployments.autoscaling import policies
from deployments.autoscaling.demand import Demand
from deployments.autoscaling.policies import Band, Policy, Settings
from deployments.autoscaling.source import PolicyError, Source, told


def own_policy(source: Source) -> Policy:
    """Return what a text defines: a function, or the method ``band`` of a new object of a class.

    Raises:
        PolicyError: it is none of them, cannot be made, or does not take what a policy takes.
    """
    defined, name = source.define(_given()), source.name
    if isinstance(defined, type):
        try:
            defined = getattr(defined(), "band", None)
        except (Exception, SystemExit) as error:
            raise PolicyError(f"{name}() raises {told(error, source.path)}") from error
        name += ".band"
    if not callable(defined):
        raise PolicyError(f"{source.name} is not a function, nor a class with a method band")
    try:
        inspect.signature(defined).bind(None, 1, None)
    except (TypeError, ValueError):  # the latter of what is written in C and does not say
        raise PolicyError(f"{name} must take (demand, target, settings)") from None
    return _Checked(defined)


class _Checked:
    """A policy whose answers are a `Band`, or an error."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __call__(self, demand: Demand, target: int, settings: Settings) -> Band:
        answer: object = self._policy(demand, target, settings)
        # By what it has and not by its class: a text may have another copy of that.
        least, most = getattr(answer, "least", None), getattr(answer, "most", None)
        if not isinstance(least, int) or not isinstance(most, int):
            raise PolicyError(f"must answer with a Band of two whole numbers, not {answer!r}")
        if least > most:
            raise PolicyError(f"must answer with a least of at most most, {most}, not {least}")
        return Band(least, most)


def _given() -> dict[str, ModuleType]:
    """What a policy may import of the project; the controller need not have it installed."""
    named: dict[str, dict[str, object]] = {
        "": {"Band": Band, "Demand": Demand, "Settings": Settings},
        ".demand": {"Demand": Demand},
        ".policies": {
            "Band": Band,
            "Settings": Settings,
            "blocks": policies.blocks,
            "ttft": policies.ttft,
            "wait": policies.wait,
        },
    }
    given: dict[str, ModuleType] = {}
    for name, contents in named.items():
        module = given[f"deployments.autoscaling{name}"] = ModuleType(name)
        vars(module).update(contents)
    return given
