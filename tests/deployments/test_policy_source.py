"""Policies of the operator's own are read and checked where a deployment is made."""

import logging
import pickle
from pathlib import Path
from random import Random

import pytest

from deployments.autoscaling import scaler_for
from deployments.config import ConfigError, ServeConfig
from deployments.policy_source import telling, with_policies
from deployments.router_config import placement_policy
from router.guarded import Guarded
from router.policy import MostFreeBlocks
from tests.deployments.autoscaling.fleet import with_load
from tests.router.fake_cluster import FakeReplica, make_core, ticket, where

SMALLEST = """
class Smallest:
    def choose(self, ticket, fleet):
        able = [name for name in fleet.replicas if fleet.takes(name, ticket)]
        return min(able, key=fleet.total_blocks, default=None)
"""
DRAWN = """
class Drawn:
    by_prefix = True
    def __init__(self, rng):
        self.rng = rng
    def choose(self, ticket, fleet):
        return fleet.replicas[self.rng.randrange(len(fleet.replicas))]
"""
ONE_EACH = """
from deployments.autoscaling import Band
def one_each(demand, target, settings):
    return Band(demand.requests, demand.requests)
"""


def written(folder: Path, text: str, name: str) -> str:
    path = folder / f"{name.lower()}.py"
    path.write_text(text)
    return f"{path}:{name}"


def fail(mistake: str) -> None:
    raise AssertionError(mistake)


def places(config: ServeConfig, *totals: int, seed: int = 0, count: int = 6) -> str:
    """Where tickets go, by letter."""
    policy = placement_policy(config, Random(seed), fail)
    replicas = [FakeReplica(chr(97 + n), total) for n, total in enumerate(totals)]
    core = make_core(*replicas, placement=policy)
    return "".join(where(core.acquire(ticket(str(n), 1)))[str(n)] for n in range(count))


def test_a_placement_policy_is_read_once_and_goes_as_text(tmp_path: Path) -> None:
    spec = written(tmp_path, SMALLEST, "Smallest")
    config = with_policies(ServeConfig(placement=spec))
    Path(spec.rpartition(":")[0]).unlink()
    assert places(pickle.loads(pickle.dumps(config)), 50, 10, 90) == "bbbbbb"
    assert with_policies(config) is config


def test_a_policy_that_wants_random_numbers_gets_those_of_the_seed(tmp_path: Path) -> None:
    config = ServeConfig(placement=written(tmp_path, DRAWN, "Drawn"))
    drawn = [places(config, *[100] * 9, seed=seed, count=40) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_module_is_imported_where_it_is_used() -> None:
    spec = "experiments.policies.round_robin:RoundRobin"
    assert places(ServeConfig(placement=spec), 100, 100, 10) == "abcabc"


def test_ours_need_no_guard_and_nothing_is_read() -> None:
    config = ServeConfig()
    assert with_policies(config) is config
    assert isinstance(placement_policy(config, Random(0), fail), MostFreeBlocks)


def test_a_copy_with_other_settings_has_the_policies_of_those(tmp_path: Path) -> None:
    """Experiments make many configurations of one."""
    first = with_policies(ServeConfig(placement=written(tmp_path, SMALLEST, "Smallest")))
    second = first.model_copy(update={"placement": written(tmp_path, DRAWN, "Drawn")})
    assert with_policies(second).by_prefix
    ours = first.model_copy(update={"placement": "most_free_blocks"})
    assert not isinstance(placement_policy(ours, Random(0), fail), Guarded)


def test_a_policy_may_look_at_prefixes(tmp_path: Path) -> None:
    spec = written(tmp_path, DRAWN, "Drawn")
    assert with_policies(ServeConfig(placement=spec)).by_prefix
    assert ServeConfig(placement="prefix_affinity").by_prefix
    assert not with_policies(
        ServeConfig(placement=written(tmp_path, SMALLEST, "Smallest"))
    ).by_prefix
    with pytest.raises(ConfigError, match="prefix_cache is false"):
        with_policies(ServeConfig(placement=spec, prefix_cache=False))


@pytest.mark.parametrize("spec", ["file", "module"])
def test_an_autoscaling_policy_is_asked_by_the_scaler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    path = written(tmp_path, ONE_EACH, "one_each")
    monkeypatch.syspath_prepend(tmp_path)
    config = ServeConfig(autoscaling=path if spec == "file" else "one_each:one_each")
    scaler = scaler_for(config)
    demand = with_load(0.5, 1, at=1.0)
    assert demand.requests == 5
    _, state = scaler.decide(demand, 1, 0.0, None)
    later = with_load(0.5, 1, at=99.0)
    assert scaler.decide(later, 1, 99.0, state)[0] == 5


@pytest.mark.parametrize("setting", ["placement", "autoscaling"])
@pytest.mark.parametrize("value", ["", "nothing", "x.py", ":X", ".py:X", "a b:X", "a.py:1", "a.:X"])
def test_what_names_no_policy_is_refused(setting: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^'{setting}' must be .* FILE.py:NAME or MODULE:NAME"):
        ServeConfig.of({setting: value})


CHOOSES = "def choose(self, ticket, fleet): pass"


@pytest.mark.parametrize(
    ("setting", "text", "reason"),
    [
        ("placement", "def Mine(): pass", "Mine is not a class"),
        ("placement", "class Mine: pass", r"Mine has no method choose\(ticket, fleet\)"),
        (
            "placement",
            "class Mine:\n    def choose(self, ticket): pass",
            r"Mine.choose must take \(ticket, fleet\)",
        ),
        (
            "placement",
            f"class Mine:\n    def __init__(self, x): pass\n    {CHOOSES}",
            r"Mine\(\) raises TypeError: .*'x'",
        ),
        (
            "placement",
            f"class Mine:\n    def __init__(self): 1 / 0\n    {CHOOSES}",
            r"Mine\(\) raises ZeroDivisionError in line 2: division by zero",
        ),
        (
            "placement",
            "class Mine:\n    choose = max",
            r"Mine.choose must take \(ticket, fleet\)",
        ),
        (
            "placement",
            f"class Mine:\n    by_prefix = property(lambda self: 1 / 0)\n    {CHOOSES}",
            r"Mine.by_prefix raises ZeroDivisionError in line 2: division by zero",
        ),
        ("placement", "import nothing", "raises ModuleNotFoundError in line 1: No module named"),
        ("autoscaling", "Mine = 3", "Mine is not a function, nor a class with a method band"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    tmp_path: Path, setting: str, text: str, reason: str
) -> None:
    spec = written(tmp_path, text, "Mine")
    with pytest.raises(ConfigError, match=f"^{setting} {spec}: {reason}"):
        with_policies(ServeConfig.of({setting: spec}))


@pytest.mark.parametrize("setting", ["placement", "autoscaling"])
def test_what_cannot_be_read_is_said(tmp_path: Path, setting: str) -> None:
    (tmp_path / "latin.py").write_bytes("# é".encode("latin-1"))
    for path, reason in {
        f"{tmp_path}/missing.py": "No such file or directory",
        f"{tmp_path}/latin.py": "is not UTF-8 text",
        "nothing.of_that_name": "there is no such module",
    }.items():
        with pytest.raises(ConfigError, match=f"^{setting} {path}:X: {reason}$"):
            with_policies(ServeConfig.of({setting: f"{path}:X"}))


def test_thousands_of_mistakes_are_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    tell = telling("my.py:Mine", logging.getLogger("a_test"))
    for n in range(1, 5001):
        tell(f"chose {n}")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 13
    assert lines[0] == "placement my.py:Mine chose 1; the freest replica is taken (1 times so far)"
