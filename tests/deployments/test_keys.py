"""Whose key it is, and what a key file may say."""

import pickle
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from deployments import keys as module
from deployments.app import build_app
from deployments.config import ConfigError, ServeConfig
from deployments.keys import Keyring, with_access
from deployments.openai.errors import Unauthorized
from deployments.tenant import Tenant

HASHED = sha256(b"sk-hashed").hexdigest()
GOOD = f"""
tenants:
  search: {{weight: 2, min_priority: -10, max_priority: 10, max_in_flight: 64}}
  batch: {{tokens_per_minute: 200000}}
keys:
  sk-abc: search
  sk-def: search
  sha256:{HASHED}: batch
"""
SEARCH = Tenant("search", 2.0, -10, 10, 64)
BATCH = Tenant("batch", tokens_per_minute=200_000)

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def file(text: str) -> str:
        path = tmp_path / "keys.yaml"
        path.write_text(text)
        return str(path)

    return file


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_each_key_is_its_tenants(write: Write) -> None:
    ring = Keyring.of(ServeConfig.of({"key_file": write(GOOD)}))
    assert ring.tenant(bearer("sk-abc")) == ring.tenant(bearer("sk-def")) == SEARCH
    assert ring.tenant(bearer("sk-hashed")) == BATCH
    assert ring.tenant({"authorization": "bearer  sk-abc "}) == SEARCH


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(""),
        bearer("sk-ab"),
        bearer("sk-abcd"),
        bearer("schlüssel"),
        bearer(HASHED),
        bearer(f"sha256:{HASHED}"),
        {"authorization": "sk-abc"},
        {"authorization": "Basic sk-abc"},
    ],
    ids=str,
)
def test_nobody_else_is_let_in(headers: dict[str, str], write: Write) -> None:
    """Nor is who has read the file: a digest is not a key."""
    ring = Keyring.of(ServeConfig.of({"key_file": write(GOOD)}))
    with pytest.raises(Unauthorized):
        ring.tenant(headers)


def test_without_any_key_everybody_is_the_same_tenant() -> None:
    ring = Keyring.of(ServeConfig())
    assert ring.tenant({}) == ring.tenant(bearer("anything")) == Tenant("")


def test_the_api_key_has_no_name_and_no_limits(write: Write) -> None:
    ring = Keyring.of(ServeConfig.of({"api_key": "own"}))
    assert ring.tenant(bearer("own")) == Tenant("")
    with pytest.raises(Unauthorized):
        ring.tenant({})
    both = Keyring.of(ServeConfig.of({"api_key": "own", "key_file": write(GOOD)}))
    assert (both.tenant(bearer("own")), both.tenant(bearer("sk-abc"))) == (Tenant(""), SEARCH)


def test_every_key_is_compared_as_a_digest_in_constant_time(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only up to the right one, and never as text: time would tell how near a guess was."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(known: bytes, given: bytes) -> bool:
        compared.append((known, given))
        return known == given

    ring = Keyring.of(ServeConfig.of({"api_key": "own", "key_file": write(GOOD)}))
    monkeypatch.setattr(module, "compare_digest", compare)
    for key in ("sk-abc", "own"):
        ring.tenant(bearer(key))
    with pytest.raises(Unauthorized):
        ring.tenant(bearer("wrong"))
    assert len(compared) == 3 * 4
    assert {len(one) for pair in compared for one in pair} == {32}


WRONG = [
    ("", "must have 'tenants' and 'keys', and nothing beside them"),
    ("sk-secret", "must have 'tenants' and 'keys', and nothing beside them"),
    ("sk-secret: a", "'tenants' is required"),
    (
        "tenants: {a: {}}\nkeys: {x: a}\nsk-secret: a",
        "must have 'tenants' and 'keys', and nothing beside them",
    ),
    ("tenants: {a: {}}", "'keys' is required"),
    ("tenants: {a: {}}\nkeys: sk-secret", "'keys' must be an object, not a string"),
    ("tenants: {a: {}}\nkeys: {sk-secret: 1}", "'keys' must be keys, quoted, with the names"),
    ("tenants: {a: {}}\nkeys: {12345: a}", "'keys' must be keys, quoted, with the names"),
    ("tenants: {a: {}}\nkeys: {sk-secret: b}", "key 1 of 'keys' names the unknown tenant 'b'"),
    ("tenants: {a: {}}\nkeys: {x: a, 'sk secret': a}", "key 2 of 'keys' must be printable"),
    ("tenants: {a: {}}\nkeys: {'sha256:12': a}", "key 1 of 'keys' must have 64 hexadecimal digits"),
    ("tenants: {a: {}}\nkeys:\n  sk-secret: a\n  sk-secret: a", "line 4 repeats a name or key"),
    ("tenants: {a: {}, a: {}}\nkeys: {x: a}", "line 1 repeats a name or key"),
    (f"tenants: {{a: {{}}}}\nkeys: {{sk-hashed: a, 'sha256:{HASHED}': a}}", "key 2 of 'keys' is"),
    ("tenants: {a: {}}\nkeys: {own-key: a}", "key 1 of 'keys' is given twice"),
    ("tenants: {a: {weight: 0}}\nkeys: {x: a}", "'tenants.a.weight' must be greater than 0, not 0"),
    ("tenants: {a: {wait: 1}}\nkeys: {x: a}", "'tenants.a.wait' is not a known setting"),
    (
        "tenants: {a: {max_in_flight: 0}}\nkeys: {x: a}",
        "'tenants.a.max_in_flight' must be at least 1, not 0",
    ),
    (
        "tenants: {a: {tokens_per_minute: many}}\nkeys: {x: a}",
        "'tenants.a.tokens_per_minute' must be an integer, not 'many'",
    ),
    (
        "tenants: {a: {max_priority: 2000}}\nkeys: {x: a}",
        "'tenants.a.max_priority' must be from -1000 to 1000, not 2000",
    ),
    (
        "tenants: {a: {min_priority: 5, max_priority: 4}}\nkeys: {x: a}",
        "'tenants.a.min_priority' must be at most its max_priority, 4, not 5",
    ),
    ("tenants: {'a b': {}}\nkeys: {x: a b}", "'tenants.a b"),
    ("tenants: [\nkeys: {sk-secret: a}", "is not valid YAML in line 2"),
    ("tenants: \x00", "is not valid YAML"),
]


@pytest.mark.parametrize(("text", "line"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_file_is_one_line_that_names_it_and_no_key(
    text: str, line: str, write: Write
) -> None:
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        build_app({"key_file": path, "api_key": "own-key"})
    said = str(caught.value)
    assert said.startswith(f"key_file {path}: {line}"), said
    assert "secret" not in said
    assert "\n" not in said


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        build_app({"key_file": str(tmp_path / "none.yaml")})
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        build_app({"key_file": str(tmp_path / "binary")})


def test_the_file_is_read_once_and_the_keys_go_to_gateways_alone(write: Write) -> None:
    """Other machines do not have it; and Ray keeps what deployments are made with."""
    path = write(GOOD)
    gateway = build_app({"key_file": path, "api_key": "own-key"})._bound_deployment
    Path(path).unlink()
    config, router, replica = pickle.loads(pickle.dumps(gateway.init_args[:1])) + tuple(
        one._bound_deployment.init_args[0] for one in gateway.init_args[1:]
    )
    ring = Keyring.of(config)
    assert ring.tenant(bearer("sk-abc")) == SEARCH
    assert b"sk-abc" not in pickle.dumps(config)
    assert router.access.tenants == (SEARCH, BATCH)
    assert router.access.digests == ()
    assert replica.access is None
    for inner in (router, replica):
        assert (inner.key_file, inner.api_key) == (None, None)


def test_reading_again_changes_nothing(write: Write) -> None:
    config = with_access(ServeConfig.of({"key_file": write(GOOD)}))
    assert with_access(config) is config
    assert with_access(ServeConfig()) == ServeConfig()


def test_the_file_in_the_documentation_is_one(write: Write) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tenants.md").read_text()
    text = page.split("```yaml\n")[1].split("```")[0]
    ring = Keyring.of(ServeConfig.of({"key_file": write(text)}))
    assert ring.tenant(bearer("sk-7Qx4")) == SEARCH
    assert ring.tenant(bearer("sk-batch")).max_priority == 0
