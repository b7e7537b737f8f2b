"""Tenant: one of those who share a deployment, as the key file describes them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant; one that is not limited may use what the server has.

    Attributes:
        name: as in labels and logs; empty for those who need no entry in a key file.
        weight: of its share when several have work.
        min_priority, max_priority: priorities that its requests may have; None is the server's
            bound.
        max_in_flight: requests under way at once.
        tokens_per_minute: tokens of prompts and answers.
    """

    name: str
    weight: float = 1.0
    min_priority: int | None = None
    max_priority: int | None = None
    max_in_flight: int | None = None
    tokens_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """What a key file says.

    Attributes:
        tenants: in the order of the file.
        digests: of each key its SHA-256 and the name of its tenant; the keys themselves are kept
            nowhere.
    """

    tenants: tuple[Tenant, ...]
    digests: tuple[tuple[bytes, str], ...]
