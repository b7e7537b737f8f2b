"""Keyring: whose request it is, by the API key that it carries."""

from collections.abc import Hashable, Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Annotated, Any, Final, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deployments.config import ConfigError, ServeConfig
from deployments.openai.errors import Unauthorized
from deployments.tenant import Access, Tenant
from deployments.validation import explain, show

_HASHED: Final = "sha256:"
_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class Keyring:
    """The keys that are let in; without any, everybody is.

    Args:
        tenants: by name.
        digests: SHA-256 of each key, and the name of its tenant.
    """

    def __init__(self, tenants: Mapping[str, Tenant], digests: Sequence[tuple[bytes, str]]) -> None:
        self._tenants = tenants
        self._digests = tuple(digests)

    @classmethod
    def of(cls, config: ServeConfig) -> Self:
        """Make the keyring of a deployment: those of its key file, and ``api_key``.

        Raises:
            ConfigError: see `with_access`.
        """
        access = with_access(config).access or Access((), ())
        tenants = {"": Tenant(""), **{one.name: one for one in access.tenants}}
        own = () if config.key is None else ((_digest(config.key), ""),)
        return cls(tenants, (*access.digests, *own))

    def tenant(self, headers: Mapping[str, str]) -> Tenant:
        """Return whose key the Authorization header carries.

        All keys are compared, each in constant time: how long it takes says nothing about how
        near a wrong one came. So it costs a fraction of a microsecond for each key there is.

        Args:
            headers: looked up in lower case.

        Raises:
            Unauthorized: it carries no key, or one that is not known.
        """
        if not self._digests:
            return self._tenants[""]
        scheme, _, given = headers.get("authorization", "").partition(" ")
        digest = _digest(given.strip())
        whose: str | None = None
        for known, name in self._digests:
            if compare_digest(known, digest):
                whose = name
        if scheme.lower() != "bearer" or whose is None:
            raise Unauthorized(
                "Give a valid API key in the header 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
            )
        return self._tenants[whose]


def with_access(config: ServeConfig) -> ServeConfig:
    """Return the configuration with what its key file says; it is read once.

    So the file has to be where the application is built, and on no other machine.

    Raises:
        ConfigError: the file cannot be read or is wrong; names file, field and value, but never
            a key.
    """
    if config.key_file is None or config.access is not None:
        return config
    try:
        access = _read(Path(config.key_file), config)
    except _Wrong as error:
        raise ConfigError(f"key_file {config.key_file}: {error}") from None
    return config.with_access(access)


class _Wrong(ValueError):
    """What is wrong with a key file."""


class _TenantEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    weight: float = Field(default=1.0, gt=0)
    min_priority: int | None = None
    max_priority: int | None = None
    max_in_flight: int | None = Field(default=None, ge=1)
    tokens_per_minute: int | None = Field(default=None, ge=1)


class _Entries(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    tenants: dict[Annotated[str, Field(pattern=_NAME)], _TenantEntry] = Field(min_length=1)
    keys: dict[str, str] = Field(min_length=1)


class _UniqueLoader(yaml.SafeLoader):
    """YAML in which nothing is said twice: of two the last would count, in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _Wrong(f"line {key.start_mark.line + 1} repeats a name or key")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read(path: Path, config: ServeConfig) -> Access:
    try:
        entries = _Entries.model_validate(yaml.load(path.read_text("utf-8"), _UniqueLoader))
    except OSError as error:
        raise _Wrong(error.strerror or "cannot be read") from None
    except UnicodeDecodeError:
        raise _Wrong("is not UTF-8 text") from None
    except yaml.YAMLError as error:  # its text would show the line, and so keys
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" in line {mark.line + 1}"
        raise _Wrong(f"is not valid YAML{where}") from None
    except ValidationError as error:
        raise _Wrong(_explain(error)) from None
    tenants = tuple(_tenant(name, one, config) for name, one in entries.tenants.items())
    own = None if config.key is None else _digest(config.key)
    digests: dict[bytes, str] = {}
    for number, (key, name) in enumerate(entries.keys.items(), 1):
        if name not in entries.tenants:
            raise _Wrong(f"key {number} of 'keys' names the unknown tenant {show(name)}")
        digest = _digest_of_entry(key, number)
        if digest == own or digest in digests:
            raise _Wrong(f"key {number} of 'keys' is given twice")
        digests[digest] = name
    return Access(tenants, tuple(digests.items()))


def _explain(error: ValidationError) -> str:
    """Say what is wrong, but never a key, wherever one was written."""
    first = error.errors(include_url=False)[0]
    if not first["loc"] or (len(first["loc"]) == 1 and first["type"] == "extra_forbidden"):
        return "must have 'tenants' and 'keys', and nothing beside them"
    if first["loc"][0] == "keys" and len(first["loc"]) > 1:
        return "'keys' must be keys, quoted, with the names of tenants"
    return explain(error, {"keys"}).message


def _tenant(name: str, entry: _TenantEntry, config: ServeConfig) -> Tenant:
    field = f"'tenants.{name}"
    lowest, highest = -config.max_priority, config.max_priority
    for bound in ("min_priority", "max_priority"):
        value = getattr(entry, bound)
        if value is not None and not lowest <= value <= highest:
            raise _Wrong(f"{field}.{bound}' must be from {lowest} to {highest}, not {value}")
    least = lowest if entry.min_priority is None else entry.min_priority
    most = highest if entry.max_priority is None else entry.max_priority
    if least > most:
        raise _Wrong(f"{field}.min_priority' must be at most its max_priority, {most}, not {least}")
    return Tenant(name, **entry.model_dump())


def _digest_of_entry(key: str, number: int) -> bytes:
    if key.startswith(_HASHED):
        try:
            digest = bytes.fromhex(key.removeprefix(_HASHED))
        except ValueError:
            digest = b""
        if len(digest) != sha256().digest_size:
            raise _Wrong(f"key {number} of 'keys' must have 64 hexadecimal digits after 'sha256:'")
        return digest
    if not (key and key.isascii() and key.isprintable() and " " not in key):
        raise _Wrong(f"key {number} of 'keys' must be printable ASCII characters without spaces")
    return _digest(key)


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()
