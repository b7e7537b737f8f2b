"""Settings: their documentation, their checks, and the way through serve.yaml."""

import json
from typing import Any

import pytest

from deployments.config import ConfigError, ServeConfig, settings_table
from engine.rank import SchedPolicy

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"port": 70000}, "'port' must be at most 65535, not 70000"),
    ({"port": 0}, "'port' must be at least 1, not 0"),
    ({"replicas": 0}, "'replicas' must be at least 1, not 0"),
    ({"replicas": "2"}, "'replicas' must be an integer, not '2'"),
    ({"replicas": 1.5}, "'replicas' must be an integer, not 1.5"),
    ({"lookahead": True}, "'lookahead' must be an integer, not true"),
    ({"lookahead": -1}, "'lookahead' must be at least 0, not -1"),
    ({"max_model_len": 1}, "'max_model_len' must be at least 2, not 1"),
    ({"block_size": 0}, "'block_size' must be at least 1, not 0"),
    ({"aging_seconds": 0}, "'aging_seconds' must be at least 0.001, not 0"),
    ({"aging_seconds": float("nan")}, "'aging_seconds' must be a finite number, not nan"),
    ({"dtype": "int8"}, "'dtype' must be 'auto', 'bfloat16' or 'float32', not 'int8'"),
    ({"scheduling_policy": "x"}, "'scheduling_policy' must be 'fcfs' or 'priority', not 'x'"),
    ({"vllm_priority": 1}, "'vllm_priority' must be true or false, not 1"),
    ({"model": ""}, "'model' must be a string of at least 1 characters, not ''"),
    (
        {"num_gpus_per_replica": 1.5},
        "'num_gpus_per_replica' must be at most 1, not 1.5",
    ),
    (
        {"service_tiers": '{"gold": 5000}', "max_priority": 10},
        "service_tiers must have priorities from -10 to 10, as max_priority says, not 5000 "
        "for 'gold'",
    ),
    (
        {"service_tiers": {"flex": -11}, "max_priority": 10},
        "service_tiers must have priorities from -10 to 10, as max_priority says, not -11 "
        "for 'flex'",
    ),
    ({"replica": 2}, "'replica' is not a known setting"),
]


@pytest.mark.parametrize(("args", "line"), WRONG, ids=str)
def test_a_wrong_setting_is_one_line_with_field_value_and_limit(
    args: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        ServeConfig.of(args)
    assert str(caught.value) == line


@pytest.mark.parametrize("key", ["", "two words", "tab\t", "schlüssel", 12345, ["s3cret"]])
def test_a_wrong_api_key_is_refused_without_showing_it(key: Any) -> None:
    with pytest.raises(ConfigError, match="api_key") as caught:
        ServeConfig.of({"api_key": key})
    assert not str(key) or str(key) not in str(caught.value)


def test_the_key_may_come_from_the_environment() -> None:
    environ = {"TIDEGATE_API_KEY": "s3cret"}
    assert ServeConfig.of({}, environ).key == "s3cret"
    assert ServeConfig.of({"api_key": "flag"}, environ).key == "flag"
    assert ServeConfig.of({"api_key": None}, environ).key == "s3cret"
    assert ServeConfig.of({}, {}).key is None
    # A variable that was to hold the key and is empty opens nothing.
    with pytest.raises(ConfigError, match="api_key"):
        ServeConfig.of({}, {"TIDEGATE_API_KEY": ""})
    assert ServeConfig.of({}, environ).without_key() == ServeConfig()


def test_every_setting_is_documented_in_place() -> None:
    for name, field in ServeConfig.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name


def test_the_table_has_a_row_for_each_setting() -> None:
    rows = settings_table().splitlines()
    assert len(rows) == 2 + len(ServeConfig.model_fields)
    assert any(row.startswith("| `lookahead` | `--lookahead` | `2` |") for row in rows)
    assert all(row.count("|") == 5 for row in rows)


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"api_key": "s3cret", "scheduling_policy": "fcfs", "num_gpus_per_replica": 1},
        {"model": "/models/x", "served_model_name": "x", "num_blocks": 64, "threads": 3},
    ],
    ids=str,
)
def test_a_configuration_survives_the_way_through_json(args: dict[str, Any]) -> None:
    config = ServeConfig.of(args)
    assert ServeConfig.of(json.loads(json.dumps(config.to_args()))) == config


def test_none_is_a_settings_default() -> None:
    assert ServeConfig.of(dict.fromkeys(ServeConfig.model_fields)) == ServeConfig()


def test_the_key_is_not_in_what_is_logged() -> None:
    config = ServeConfig.of({"api_key": "s3cret"})
    assert "s3cret" not in f"{config!r} {config}"
    assert config.key == "s3cret"
    assert ServeConfig().key is None


def test_the_models_name() -> None:
    assert ServeConfig().name == "SmolLM2-135M-Instruct"
    assert ServeConfig.of({"model": "org/model"}).name == "org/model"
    assert ServeConfig.of({"served_model_name": "x"}).name == "x"


def test_derived_numbers() -> None:
    config = ServeConfig.of({"aging_seconds": 2.5, "threads": 3})
    assert (config.aging_ticks, config.threads_per_replica) == (2500, 3)
    assert ServeConfig.of({"replicas": 1000}).threads_per_replica == 1
    assert ServeConfig.of({"aging_seconds": 0.001}).aging_ticks == 1
    assert config.scheduling_policy is SchedPolicy.PRIORITY


def test_a_replica_has_time_to_report_before_it_counts_as_lost() -> None:
    """Idle fleets were lost, and lost again, between two heartbeats."""
    with pytest.raises(ConfigError, match=r"silent_s must be greater than 2 \* heartbeat_s, 40, "):
        ServeConfig.of({"heartbeat_s": 20.0})
    ServeConfig.of({"heartbeat_s": 20.0, "silent_s": 41.0})


def test_the_fewest_replicas_are_not_more_than_the_most() -> None:
    with pytest.raises(ConfigError, match="min_replicas must be at most max_replicas, 8, not 9"):
        ServeConfig.of({"min_replicas": 9})


def test_origins_are_a_list_and_as_a_flag_have_commas_between_them() -> None:
    assert ServeConfig().cors_origins == []
    two = ["https://app.example", "http://localhost:3000"]
    assert ServeConfig.of({"cors_origins": two}).cors_origins == two
    assert ServeConfig.of({"cors_origins": ", ".join(two)}).cors_origins == two
    assert ServeConfig.of({"cors_origins": "*"}).cors_origins == ["*"]
    # None of these is ever what a browser calls an origin: they would let nobody in.
    for wrong in ("app.example", "https://app.example/", "https://*.example", "", ["*", ""], 5):
        with pytest.raises(ConfigError, match="cors_origins"):
            ServeConfig.of({"cors_origins": wrong})


def test_tiers_are_named_priorities_within_the_bound() -> None:
    assert ServeConfig().tiers == {"priority": 10, "flex": -10}
    assert ServeConfig.of({"service_tiers": '{"gold": 5}', "max_priority": 5}).tiers == {"gold": 5}
    # Nobody asked for those that are there by default: they give way.
    narrow = ServeConfig.of({"max_priority": 5})
    assert ServeConfig.of(narrow.to_args()).tiers == {"priority": 5, "flex": -5}
    for wrong in ("gold", "[]", {"auto": 1}, {"default": 0}, {"gold": 1.5}, {"gold": "1"}):
        with pytest.raises(ConfigError, match="service_tiers"):
            ServeConfig.of({"service_tiers": wrong})


def test_affinity_needs_what_it_goes_by() -> None:
    with pytest.raises(ConfigError, match="placement must not be prefix_affinity while prefix_ca"):
        ServeConfig.of({"placement": "prefix_affinity", "prefix_cache": False})
    ServeConfig.of({"placement": "prefix_affinity"})
