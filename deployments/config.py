"""ServeConfig: every setting of a deployment, documented in place.

The command line, ``serve.yaml`` and ``build_app`` all make one of these, so a setting has
one name, one default and one check.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from pydantic import PrivateAttr, SecretStr, ValidationError, field_validator, model_validator

from deployments.own_policies import OwnPolicies, split
from deployments.settings import (
    API_KEY_VARIABLE,
    AUTOSCALINGS,
    DEMO_MODEL,
    DEMO_NAME,
    PLACEMENTS,
    EngineSettings,
    FaultSettings,
    FleetSettings,
    HttpSettings,
    ModelSettings,
    ObservationSettings,
    SchedulingSettings,
)
from deployments.tenant import Access
from deployments.validation import explain, show

# The router's and the engine's clocks tick in milliseconds of wall-clock time.
TICKS_PER_SECOND = 1000

_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#*\s]+")
_DEFAULT_TIERS = SchedulingSettings.model_fields["service_tiers"].default


class ConfigError(ValueError):
    """A setting is wrong; the message is one line that names it, its value and its limit."""


# pydantic takes the fields of the last base first.
class ServeConfig(
    ObservationSettings,
    HttpSettings,
    FaultSettings,
    FleetSettings,
    SchedulingSettings,
    EngineSettings,
    ModelSettings,
):
    """How a model is served.

    Make one with ``ServeConfig.of``, which turns what is wrong into one line.
    """

    _access: Access | None = PrivateAttr(default=None)
    _template: str | None = PrivateAttr(default=None)
    _policies: OwnPolicies | None = PrivateAttr(default=None)

    @field_validator("api_key")
    @classmethod
    def _key_fits_a_header(cls, value: SecretStr | None) -> SecretStr | None:
        key = None if value is None else value.get_secret_value()
        if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
            raise ValueError("must be printable ASCII characters without spaces")
        return value

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _origins_from_a_flag(cls, value: Any) -> Any:
        return [one.strip() for one in value.split(",")] if isinstance(value, str) else value

    @field_validator("cors_origins")
    @classmethod
    def _origins_as_browsers_spell_them(cls, value: list[str]) -> list[str]:
        for origin in value:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"must have '*' or origins like https://app.example, not {origin!r}"
                )
        return value

    @field_validator("service_tiers", mode="before")
    @classmethod
    def _tiers_from_a_flag(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError("must be a JSON object of names and priorities") from None

    @field_validator("placement")
    @classmethod
    def _placement_is_known_or_own(cls, value: str) -> str:
        return _known_or_own(value, PLACEMENTS)

    @field_validator("autoscaling")
    @classmethod
    def _autoscaling_is_known_or_own(cls, value: str) -> str:
        return _known_or_own(value, AUTOSCALINGS)

    @model_validator(mode="after")
    def _tiers_are_others(self) -> Self:
        for name in ("auto", "default"):
            if name in self.service_tiers:
                raise ValueError(f"service_tiers must not name {name!r}, whose priority is 0")
        return self

    @model_validator(mode="after")
    def _tiers_within_bounds(self) -> Self:
        most = self.max_priority
        # Those that are there by default give way instead: nobody asked for them.
        given = {} if self.service_tiers == _DEFAULT_TIERS else self.service_tiers
        for name, priority in given.items():
            if abs(priority) > most:
                raise ValueError(
                    f"service_tiers must have priorities from {-most} to {most}, "
                    f"as max_priority says, not {priority} for {name!r}"
                )
        return self

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas must be at most max_replicas, {self.max_replicas}, "
                f"not {self.min_replicas}"
            )
        return self

    @model_validator(mode="after")
    def _affinity_has_something_to_go_by(self) -> Self:
        if self.placement == "prefix_affinity" and not self.prefix_cache:
            raise ValueError(
                "placement must not be prefix_affinity while prefix_cache is false: "
                "no replica would hold a prefix"
            )
        return self

    @model_validator(mode="after")
    def _silence_is_more_than_a_pause(self) -> Self:
        if self.silent_s <= 2 * self.heartbeat_s:
            raise ValueError(
                f"silent_s must be greater than 2 * heartbeat_s, {2 * self.heartbeat_s:g}, "
                f"not {self.silent_s:g}"
            )
        return self

    @classmethod
    def of(cls, args: Mapping[str, Any], environ: Mapping[str, str] = {}) -> Self:
        """Make a configuration from plain data, as from YAML; None is a setting's default.

        Args:
            args: settings by name.
            environ: environment variables; the API key may be there, out of everyone's sight.

        Raises:
            ConfigError: unknown setting or wrong value; never repeats the API key.
        """
        given = {k: v for k, v in args.items() if v is not None}
        # One that is set and empty is a mistake, and no reason to let everyone in.
        if API_KEY_VARIABLE in environ:
            given.setdefault("api_key", environ[API_KEY_VARIABLE])
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise ConfigError(explain(error, {"api_key"}).message) from None

    def to_args(self) -> dict[str, Any]:
        """Return plain data that ``of`` makes an equal configuration from.

        The API key is in it, in clear: not for logs.
        """
        args = self.model_dump(mode="json")
        if self.api_key is not None:
            args["api_key"] = self.api_key.get_secret_value()
        return args

    def with_access(self, access: Access | None) -> Self:
        """Return the configuration with what its key file says."""
        copy = self.model_copy()
        copy._access = access
        return copy

    def without_key(self) -> Self:
        """Return the configuration for who knows the tenants, but has nothing to do with clients.

        Neither the keys are in it, nor where they are.
        """
        copy = self.model_copy(update={"api_key": None, "key_file": None})
        return copy.with_access(self.access and replace(self.access, digests=()))

    @property
    def access(self) -> Access | None:
        """What the key file says, once it was read; not part of `to_args`."""
        return self._access

    def with_template(self, template: str) -> Self:
        """Return the configuration with what the file of its chat template holds."""
        copy = self.model_copy()
        copy._template = template
        return copy

    @property
    def template(self) -> str | None:
        """The Jinja source of the chat template, once it was read; not part of `to_args`."""
        return self._template

    def with_policies(self, policies: OwnPolicies) -> Self:
        """Return the configuration with the operator's own policies."""
        copy = self.model_copy()
        copy._policies = policies
        return copy

    @property
    def policies(self) -> OwnPolicies | None:
        """The operator's own policies, once they were read; not part of `to_args`."""
        return self._policies

    @property
    def by_prefix(self) -> bool:
        """Whether placement looks at what prompts begin with."""
        own = self._policies is not None and self._policies.by_prefix
        return own or self.placement == "prefix_affinity"

    @property
    def key(self) -> str | None:
        """The API key in clear."""
        return None if self.api_key is None else self.api_key.get_secret_value()

    @property
    def name(self) -> str:
        """The model's name in the API."""
        if self.served_model_name is not None:
            return self.served_model_name
        return DEMO_NAME if self.model == DEMO_MODEL else self.model

    @property
    def tiers(self) -> dict[str, int]:
        """The priority of each service tier; those by default within ``max_priority``."""
        most = self.max_priority
        return {name: max(-most, min(most, p)) for name, p in self.service_tiers.items()}

    @property
    def fewest_replicas(self) -> int:
        """Replicas that are always meant to be there, at least."""
        return self.replicas if self.autoscaling == "off" else self.min_replicas

    @property
    def aging_ticks(self) -> int:
        """Aging for one level of priority, in milliseconds, at least 1."""
        return round(self.aging_seconds * TICKS_PER_SECOND)

    @property
    def threads_per_replica(self) -> int:
        """CPU threads that a replica computes with, at least 1."""
        if self.threads is not None:
            return self.threads
        # One core is left to the others: threads that wait for each other by spinning lose far
        # more than a core's worth when one of them is not running.
        return max(1, (len(os.sched_getaffinity(0)) - 1) // self.replicas)


def _known_or_own(value: str, known: Sequence[str]) -> str:
    if value not in known and split(value) is None:
        names = ", ".join(map(repr, known))
        raise ValueError(f"must be {names}, FILE.py:NAME or MODULE:NAME, not {show(value)}")
    return value


def settings_table() -> str:
    """Return a Markdown table of all settings, for the documentation."""
    rows = ["| setting | flag | default | meaning |", "|---|---|---|---|"]
    defaults = ServeConfig().to_args()
    for name, field in ServeConfig.model_fields.items():
        default = defaults[name]
        shown = "" if default is None else f"`{str(default).lower()}`"
        flag = "`MODEL`" if name == "model" else f"`--{name.replace('_', '-')}`"
        rows.append(f"| `{name}` | {flag} | {shown} | {field.description} |")
    return "\n".join(rows) + "\n"
