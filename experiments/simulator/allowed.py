"""Whether a server would let the requests of a load in."""

from deployments.config import ServeConfig
from experiments.loads.load import Load


def check_allowed(config: ServeConfig, load: Load) -> None:
    """See that nothing in a load is what the server answers with a 400 or 401.

    Args:
        config: the server's settings, with what the key file says, if there is one.
        load: its requests; those without a tenant are let in, as with the server's ``api_key``.

    Raises:
        ValueError: a tenant is not in the key file, or a priority is not one that its tenant, or
            anybody, may ask for.
    """
    tenants = {} if config.access is None else {one.name: one for one in config.access.tenants}
    most = config.max_priority
    for name, priority in sorted({(one.tenant, one.priority) for one in load.arrivals}):
        tenant = tenants.get(name)
        low, high, who = -most, most, "max_priority"
        if tenant is not None:
            low = low if tenant.min_priority is None else tenant.min_priority
            high = high if tenant.max_priority is None else tenant.max_priority
            who = f"{config.key_file or 'the key file'} for {name!r}"
        elif tenants and name:
            raise ValueError(
                f"tenant must be one of {config.key_file or 'the key file'}, which has "
                f"{', '.join(sorted(tenants))}, not {name!r}"
            )
        if not low <= priority <= high:
            raise ValueError(
                f"priority must be from {low} to {high}, as {who} says, not {priority}"
            )
