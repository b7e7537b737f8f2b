"""Whether the GPUs that the replicas need are there; Ray alone would wait for them for ever."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from deployments.config import ServeConfig
from deployments.failures import LaunchError

POLL_S = 0.5
_PARTS = 10_000  # of a GPU, in which Ray counts


class TooFewGpus(LaunchError):
    """The cluster lacks GPUs that the replicas need.

    Attributes:
        wanted: GPUs that the replicas need.
        available: GPUs that the cluster has.
        missing: replicas that find no room.
    """

    def __init__(self, wanted: int, available: int, missing: int, hint: str = "") -> None:
        # Its arguments, or it could not be pickled.
        super().__init__(wanted, available, missing, hint)
        self.wanted = wanted
        self.available = available
        self.missing = missing
        self._hint = hint

    def __str__(self) -> str:
        want = "1 GPU is wanted" if self.wanted == 1 else f"{self.wanted} GPUs are wanted"
        return f"{want} for the replicas, the cluster has {self.available}{self._hint}"


def require_gpus(config: ServeConfig, nodes: Sequence[float]) -> None:
    """Check that the cluster has room for the replicas that are always to be there, and for one.

    Whether others use the GPUs is not asked: they may be this application's older replicas.

    Args:
        nodes: how many GPUs each node has.

    Raises:
        TooFewGpus: there is not.
    """
    if config.num_gpus_per_replica == 0:
        return
    # A replica uses one GPU: what two of them have left over is no room for it.
    on_one = _PARTS // max(1, round(config.num_gpus_per_replica * _PARTS))
    limit = config.max_replicas_per_node
    whole = [int(gpus) for gpus in nodes if gpus >= 1]
    room = sum(on_one * gpus if limit is None else min(limit, on_one * gpus) for gpus in whole)
    replicas = max(1, config.fewest_replicas)
    if room < replicas:
        wanted = -(-replicas // on_one)
        hint = "" if limit is None else f" on {len(whole)} nodes (max_replicas_per_node: {limit})"
        raise TooFewGpus(wanted, sum(whole), replicas - room, hint)


def await_gpus(
    config: ServeConfig,
    nodes: Callable[[], Sequence[float]] | None = None,
    demand: Callable[[int, float], AbstractContextManager[None]] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait up to ``config.gpu_wait_s`` for what ``require_gpus`` checks.

    Meanwhile a cluster that scales is made to want more machines. Ray must be initialised.

    Args:
        nodes: how many GPUs each node has; by default, of Ray's cluster.
        demand: wants so many more replicas with such a share of a GPU while it is entered.

    Raises:
        RayServeException: they did not come. Of any other error Serve thinks that trying it
            three times more might help, and shows it with its traceback.
    """
    from ray.serve.exceptions import RayServeException

    nodes, demand = nodes or gpus_by_node, demand or demanded
    deadline = clock() + config.gpu_wait_s
    with contextlib.ExitStack() as wanting:
        first = True
        while True:
            try:
                require_gpus(config, nodes())
                return
            except TooFewGpus as error:
                if clock() >= deadline:
                    raise RayServeException(str(error)) from error
                if first:
                    wanting.enter_context(demand(error.missing, config.num_gpus_per_replica))
                    first = False
            sleep(min(POLL_S, max(0.0, deadline - clock())))


def gpus_by_node() -> list[float]:
    """Return how many GPUs each live node of Ray's cluster has."""
    import ray

    return [node["Resources"].get("GPU", 0.0) for node in ray.nodes() if node["Alive"]]


@contextlib.contextmanager
def demanded(replicas: int, share: float) -> Iterator[None]:
    """Make a cluster that scales want so many more replicas with such a share of a GPU.

    By a placement group that the cluster has no room for: what is free now is in it, too, or
    it would be content with that. It is granted as a whole, so it keeps nothing from others
    while it waits.
    """
    import ray
    from ray.util import placement_group, remove_placement_group

    free = int(ray.available_resources().get("GPU", 0.0) / share + 1 / _PARTS)
    group = placement_group([{"GPU": share}] * (replicas + free))
    try:
        yield
    finally:
        remove_placement_group(group)
