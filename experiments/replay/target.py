"""Target: the server that a load is sent to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml
from yarl import URL

from experiments.loads.load import Load

COMPLETIONS: Final = "v1/completions"


class TargetError(ValueError):
    """What was said of the server cannot be; the message names it."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a load goes, and in whose name.

    Attributes:
        url: of the server, ending with a slash, without the ``v1/`` that clients add.
        model: as the server calls it.
        api_key: for requests whose tenant has no key of its own; None for none.
        tenant_keys: keys by tenant.
    """

    url: URL
    model: str
    api_key: str | None = None
    tenant_keys: Mapping[str, str] = field(default_factory=dict)

    def headers(self, tenant: str) -> dict[str, str]:
        """Return the headers of a tenant's requests."""
        key = self.tenant_keys.get(tenant, self.api_key)
        authorization = {} if key is None else {"Authorization": f"Bearer {key}"}
        return {"Content-Type": "application/json", **authorization}


def base_url(text: str) -> URL:
    """Return a server's address as `Target` wants it.

    Raises:
        TargetError: it is none, or has a name and password in it.
    """
    wrong = TargetError(f"--url must be as http://127.0.0.1:8000, not {text!r}")
    try:
        url = URL(text.rstrip("/").removesuffix("/v1") + "/")
        fine = url.scheme in ("http", "https") and bool(url.host) and url.port is not None
    except ValueError:
        raise wrong from None
    if url.user is not None or url.password is not None:
        # The address is in every report.
        raise TargetError("--url must be without a name and password; --api-key takes a key")
    if not fine or url.query_string or url.fragment:
        raise wrong
    return url


def checked_key(key: str, whose: str) -> str:
    """Return the key, which can stand in a header.

    Raises:
        TargetError: it cannot.
    """
    if not (key and key.isascii() and key.isprintable() and " " not in key):
        raise TargetError(f"{whose} must be printable ASCII characters without spaces")
    return key


def read_keys(path: Path, load: Load) -> dict[str, str]:
    """Read a YAML file with the key of each tenant, ``search: sk-7Qx4``.

    Args:
        path: of the file.
        load: whose tenants all need a key; requests without a tenant do not.

    Raises:
        TargetError: the file cannot be read or is something else, or a tenant is not in it.
            Keys are never shown.
    """
    try:
        read = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"{path} cannot be read: {error}") from None
    except yaml.YAMLError:
        # What YAML says of the place repeats what stands there.
        raise TargetError(f"{path} is not YAML") from None
    if not isinstance(read, dict) or not all(
        isinstance(tenant, str) and isinstance(key, str) for tenant, key in read.items()
    ):
        raise TargetError(f"{path} must have a line for each tenant, such as search: sk-7Qx4")
    keys = {tenant: checked_key(key, f"{path}: {tenant}") for tenant, key in read.items()}
    for tenant in sorted({arrival.tenant for arrival in load.arrivals} - {""}):
        if tenant not in keys:
            raise TargetError(f"{path} has no key for the tenant {tenant!r}, which the load has")
    return keys
