"""What is said of a server is checked before anything is sent."""

from pathlib import Path

import pytest
from yarl import URL

from experiments.loads.load import Arrival, Load
from experiments.replay.target import Target, TargetError, base_url, read_keys

LOAD = Load("hand", [Arrival(0, 1, 1, 0, "search"), Arrival(0, 1, 1)])


@pytest.mark.parametrize("text", ["http://a:1", "http://a:1/", "http://a:1/v1", "http://a:1/v1/"])
def test_an_address_may_have_what_clients_add(text: str) -> None:
    assert base_url(text) == URL("http://a:1/")


def test_a_path_before_it_stays() -> None:
    assert base_url("https://a/llm/v1") / "v1/completions" == URL("https://a/llm/v1/completions")


@pytest.mark.parametrize("text", ["", "127.0.0.1:8000", "ftp://a", "http://", "http://a:x", "/v1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(TargetError, match="--url must be as http://"):
        base_url(text)


@pytest.mark.parametrize("who", ["me:secret", "me", ":secret"])
def test_an_address_with_a_password_is_refused_without_showing_it(who: str) -> None:
    """Guards against: a password in a report, which shows the address."""
    with pytest.raises(TargetError, match="--url must be without a name and password") as caught:
        base_url(f"https://{who}@a/?b")
    assert "secret" not in str(caught.value)


def test_a_request_has_its_tenants_key_or_the_common_one() -> None:
    target = Target(URL("http://a/"), "m", "sk-all", {"search": "sk-search"})
    assert target.headers("search")["Authorization"] == "Bearer sk-search"
    assert target.headers("")["Authorization"] == "Bearer sk-all"
    assert "Authorization" not in Target(URL("http://a/"), "m").headers("")


def test_keys_are_read(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("search: sk-7Qx4\nbatch: sk-2\n")
    assert read_keys(path, LOAD) == {"search": "sk-7Qx4", "batch": "sk-2"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch: sk-secret", "no key for the tenant 'search'"),
        ("- sk-secret", "must have a line for each tenant"),
        ("search: 7", "must have a line for each tenant"),
        ("search: {sk-secret", "is not YAML"),
        ("search: sk secret", "search must be printable"),
        ("", "must have a line for each tenant"),
        (None, "cannot be read"),
    ],
)
def test_what_is_wrong_with_keys_is_said_without_showing_them(
    tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "keys.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(TargetError, match=message) as caught:
        read_keys(path, LOAD)
    assert "secret" not in str(caught.value)
