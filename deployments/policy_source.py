"""Policies of the operator's own: read where a deployment is made, run where they decide.

A file travels as text. So only who makes the deployment needs it, and what runs is what was read,
also when a part starts again. A module is imported by the router, as its own code is; Serve's
controller need not have what the router has, so there a module goes as text, too.
"""

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import replace
from importlib.abc import InspectLoader
from logging import Logger
from pathlib import Path
from random import Random

from deployments.autoscaling.own import own_policy
from deployments.autoscaling.source import PolicyError, Source, told
from deployments.config import ConfigError, ServeConfig
from deployments.own_policies import OwnPolicies, is_file, split
from deployments.settings import AUTOSCALINGS, PLACEMENTS
from router.policy import PlacementPolicy


def with_policies(config: ServeConfig) -> ServeConfig:
    """Return the configuration with the operator's own policies, if it names any; read once.

    Each is made once, to see that it can be.

    Raises:
        ConfigError: one cannot be read or made; names the setting, its value and what is wrong.
    """
    placement, scaling = named = config.placement, config.autoscaling
    if config.policies is None:
        if placement in PLACEMENTS and scaling in AUTOSCALINGS:
            return config
    elif config.policies.named == named:
        return config
    policies = OwnPolicies(named)
    setting, spec = "placement", placement
    try:
        if placement not in PLACEMENTS:
            source = _source(placement, as_text=False)
            by_prefix = _by_prefix(own_placement(source, Random(0)), source)
            policies = replace(policies, placement=source, by_prefix=by_prefix)
            if by_prefix and not config.prefix_cache:
                raise PolicyError("goes by prefixes, and prefix_cache is false")
        setting, spec = "autoscaling", scaling
        if scaling not in AUTOSCALINGS:
            source = _source(scaling, as_text=True)
            own_policy(source)
            policies = replace(policies, autoscaling=source)
    except PolicyError as error:
        raise ConfigError(f"{setting} {spec}: {error}") from error
    return config.with_policies(policies)


def own_placement(source: Source, rng: Random) -> PlacementPolicy:
    """Return a new object of the class that a text or module defines.

    Args:
        source: of the class.
        rng: is given to a constructor that has a parameter of that name.

    Raises:
        PolicyError: it is no class, cannot be made, or has no method to choose with.
    """
    defined, name = source.define(), source.name
    if not isinstance(defined, type):
        raise PolicyError(f"{name} is not a class")
    if not callable(getattr(defined, "choose", None)):
        raise PolicyError(f"{name} has no method choose(ticket, fleet)")
    try:
        wants_rng = "rng" in inspect.signature(defined).parameters
        made: PlacementPolicy = defined(rng=rng) if wants_rng else defined()
    except (Exception, SystemExit) as error:
        raise PolicyError(f"{name}() raises {told(error, source.path)}") from error
    try:
        inspect.signature(made.choose).bind(None, None)
    except (TypeError, ValueError):  # the latter of what is written in C and does not say
        raise PolicyError(f"{name}.choose must take (ticket, fleet)") from None
    return made


def _by_prefix(policy: PlacementPolicy, source: Source) -> bool:
    """Whether it says that it looks at what prompts begin with.

    Raises:
        PolicyError: to ask it raises.
    """
    try:
        return bool(getattr(policy, "by_prefix", False))
    except (Exception, SystemExit) as error:
        raise PolicyError(f"{source.name}.by_prefix raises {told(error, source.path)}") from error


def telling(spec: str, logger: Logger) -> Callable[[str], None]:
    """Return what logs mistakes of a placement policy: not each, there may be thousands a second.

    Args:
        spec: names the policy.
        logger: where to.
    """
    count = 0

    def tell(mistake: str) -> None:
        nonlocal count
        count += 1
        if count & (count - 1) == 0:  # the first, second, fourth, ... of them
            logger.error(
                "placement %s %s; the freest replica is taken (%d times so far)",
                *(spec, mistake, count),
            )

    return tell


def _source(spec: str, *, as_text: bool) -> Source:
    """Return what a setting names.

    Raises:
        PolicyError: it cannot be read.
    """
    parts = split(spec)
    assert parts is not None, "ServeConfig has checked it"
    where, name = parts
    if is_file(where):
        return Source(where, name, _read(where))
    return _module(where, name) if as_text else Source(where, name, None)


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise PolicyError(error.strerror or "cannot be read") from None
    except UnicodeDecodeError:
        raise PolicyError("is not UTF-8 text") from None


def _module(module: str, name: str) -> Source:
    """The text of a module, which is not run."""
    try:
        spec = importlib.util.find_spec(module)  # imports what is above it
    except ModuleNotFoundError:
        spec = None
    except Exception as error:
        raise PolicyError(f"raises {told(error)}") from error
    if spec is None:
        raise PolicyError("there is no such module")
    text = spec.loader.get_source(module) if isinstance(spec.loader, InspectLoader) else None
    if text is None:
        raise PolicyError("is a module without Python text")
    return Source(spec.origin or module, name, text)
