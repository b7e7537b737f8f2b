"""GPUs that are wanted and GPUs that there are, on nodes that are counted by hand."""

import contextlib
import pickle
from collections.abc import Iterator

import pytest
import ray
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.serve.exceptions import RayServeException

from deployments.config import ServeConfig
from deployments.gpus import TooFewGpus, await_gpus, demanded, gpus_by_node, require_gpus


def config(replicas: int, share: float, **more: object) -> ServeConfig:
    return ServeConfig.of({"replicas": replicas, "num_gpus_per_replica": share, **more})


class World:
    """A cluster whose nodes come at given times, and a clock that only moves when one waits."""

    def __init__(self, *arrivals: float) -> None:
        self.now = 0.0
        self.arrivals = arrivals
        self.asked: list[tuple[int, float]] = []
        self.asking = 0

    def nodes(self) -> list[float]:
        return [1.0 for at in self.arrivals if at <= self.now]

    @contextlib.contextmanager
    def demand(self, replicas: int, share: float) -> Iterator[None]:
        self.asked.append((replicas, share))
        self.asking += 1
        try:
            yield
        finally:
            self.asking -= 1

    def sleep(self, seconds: float) -> None:
        assert self.asking == 1
        assert seconds > 0
        self.now += seconds

    def wait(self, config: ServeConfig) -> None:
        await_gpus(config, self.nodes, self.demand, lambda: self.now, self.sleep)


@pytest.mark.parametrize(
    ("replicas", "share", "nodes", "wanted"),
    [
        (4, 1.0, [2.0], 4),
        (1, 1.0, [], 1),
        (1, 1.0, [0.0, 0.5], 1),
        (3, 0.5, [1.0], 2),
        # Two halves of two GPUs are no GPU, on one node or on two.
        (3, 0.6, [1.0, 1.0], 3),
        (3, 0.6, [2.0], 3),
        (5, 0.3334, [2.0], 3),
    ],
)
def test_too_few_gpus_says_how_many(
    replicas: int, share: float, nodes: list[float], wanted: int
) -> None:
    """vllm#13388: a deployment that waited for ever for GPUs that do not exist."""
    with pytest.raises(TooFewGpus) as found:
        require_gpus(config(replicas, share), nodes)
    assert (found.value.wanted, found.value.available) == (wanted, sum(int(g) for g in nodes))
    require_gpus(config(replicas, share), [*nodes, float(wanted)])


def test_the_message_is_for_a_person_and_crosses_processes() -> None:
    with pytest.raises(TooFewGpus) as found:
        require_gpus(config(4, 1.0), [2.0])
    again = pickle.loads(pickle.dumps(found.value))
    assert str(again) == "4 GPUs are wanted for the replicas, the cluster has 2"
    with pytest.raises(TooFewGpus, match=r"^1 GPU is wanted .* has 0$"):
        require_gpus(config(1, 0.5), [])


@pytest.mark.parametrize("share", [0.3333, 0.25, 0.1, 1.0])
def test_a_share_is_counted_as_ray_counts_it(share: float) -> None:
    fits = round(1 / share)
    require_gpus(config(fits, share), [1.0])
    with pytest.raises(TooFewGpus):
        require_gpus(config(fits + 1, share), [1.0])


def test_replicas_that_need_no_gpu_find_room_anywhere() -> None:
    require_gpus(config(9, 0.0), [])


def test_a_node_takes_no_more_replicas_than_it_may() -> None:
    spread = config(3, 0.5, max_replicas_per_node=1)
    require_gpus(spread, [1.0, 4.0, 1.0])
    with pytest.raises(TooFewGpus, match=r"the cluster has 5 on 2 nodes \(max_replicas_per_node"):
        require_gpus(spread, [1.0, 4.0])


@pytest.mark.parametrize(("fewest", "nodes"), [(0, [1.0]), (2, [1.0, 1.0])])
def test_with_autoscaling_the_fewest_must_fit_and_one_at_least(
    fewest: int, nodes: list[float]
) -> None:
    scaled = config(8, 1.0, autoscaling="blocks", min_replicas=fewest, max_replicas=100)
    require_gpus(scaled, nodes)
    with pytest.raises(TooFewGpus):
        require_gpus(scaled, nodes[1:])


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 4), max_size=5),
    st.sampled_from([0.1, 0.25, 0.4, 0.5, 0.6, 1.0]),
    st.integers(1, 12),
)
def test_what_is_let_through_can_be_placed(gpus: list[int], share: float, replicas: int) -> None:
    """The plain model: put replicas on GPUs one by one."""
    free = [1.0 for node in gpus for _ in range(node)]
    placed = 0
    for index, room in enumerate(free):
        while placed < replicas and room > share - 1e-6:
            room -= share
            free[index] = room
            placed += 1
    missing = 0
    try:
        require_gpus(config(replicas, share), [float(node) for node in gpus])
    except TooFewGpus as error:
        missing = error.missing
    assert missing == replicas - placed


def test_gpus_that_are_there_are_not_waited_for() -> None:
    """So a redeploy goes on at once, though the older replicas hold them all."""
    world = World(0.0, 0.0)
    world.wait(config(2, 1.0))
    assert (world.now, world.asked) == (0.0, [])


def test_gpus_that_come_in_time_are_waited_for() -> None:
    world = World(0.0, 5.0, 20.0)
    world.wait(config(3, 1.0, gpu_wait_s=30.0))
    assert 20.0 <= world.now < 21.0
    assert world.asked == [(2, 1.0)]
    assert world.asking == 0


@pytest.mark.parametrize("limit", [0.0, 0.3, 30.0])
def test_gpus_that_do_not_come_are_an_error_in_time(limit: float) -> None:
    world = World(0.0, 40.0)
    with pytest.raises(RayServeException, match=r"^3 GPUs are wanted .*, the cluster has 1$"):
        world.wait(config(3, 1.0, gpu_wait_s=limit))
    assert world.now == pytest.approx(limit)
    assert world.asking == 0


def test_demand_is_more_than_there_is_room_for_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that fitted into what is free would be granted, and nothing asked for."""
    groups: list[list[dict[str, float]]] = []

    def group(bundles: list[dict[str, float]]) -> list[dict[str, float]]:
        groups.append(bundles)
        return bundles

    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 9.0, "GPU": 1.6})
    monkeypatch.setattr(ray.util, "placement_group", group)
    monkeypatch.setattr(ray.util, "remove_placement_group", groups.remove)
    # Serve interrupts what builds an application when a newer one is deployed.
    with contextlib.suppress(KeyboardInterrupt), demanded(2, 0.4):
        assert groups == [[{"GPU": 0.4}] * 6]
        raise KeyboardInterrupt
    assert groups == []
    monkeypatch.setattr(ray, "available_resources", dict)
    with demanded(2, 1.0):
        assert groups == [[{"GPU": 1.0}] * 2]


def test_the_gpus_of_dead_nodes_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0}},
        {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 2.0}},
        {"Alive": False, "Resources": {"GPU": 8.0}},
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    assert gpus_by_node() == [0.0, 2.0]
