"""HAProxy as Serve is to run it: Ray's own template, a real HAProxy, gateways that fail."""

import contextlib
import http.client
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deployments import haproxy
from deployments.launch import free_ports
from deployments.openai.errors import no_replica
from tests.deployments.conftest import eventually
from tests.deployments.front import Gateway, front, needs_haproxy

UNAVAILABLE = no_replica(5.0).envelope()


def assert_unavailable(answer: tuple[int, dict[str, str], Any]) -> None:
    status, headers, content = answer
    assert (status, content) == (503, UNAVAILABLE)
    assert headers["content-type"] == "application/json"
    assert headers["retry-after"] == "5"
    assert 4000 < int(headers["retry-after-ms"]) <= 5000


# ---- on Ray's template: when one of these turns red, Ray has changed it ----------------


@needs_haproxy
@pytest.mark.parametrize("path", ["/health", "/v1/completions", "/nothing"])
def test_before_there_is_an_application_all_is_unavailable(tmp_path: Path, path: str) -> None:
    """Serve says 404, which clients do not try again."""
    with front(tmp_path, None) as proxy:
        answer = proxy.ask(path, b"{}", **{"x-request-id": "a b,c"})
        assert_unavailable(answer)
        assert answer[1]["x-request-id"] == "a b,c"


@needs_haproxy
@pytest.mark.parametrize("path", ["/health", "/nonsense"])
def test_a_gateway_that_cannot_be_reached_is_not_a_500(tmp_path: Path, path: str) -> None:
    """502, 503 and 504 of HAProxy, which Serve all makes a plain 500."""
    (nobody,) = free_ports(1)
    running = Gateway().running() if path == "/nonsense" else contextlib.nullcontext(nobody)
    with running as gateway, front(tmp_path, [gateway]) as proxy:
        answer = proxy.ask(path, b"{}")
        assert_unavailable(answer)
        assert answer[1]["x-request-id"]


@needs_haproxy
@pytest.mark.parametrize("known", [False, True])
def test_while_there_is_no_gateway_requests_wait_but_health_checks_do_not(
    tmp_path: Path, known: bool
) -> None:
    """Serve's own proxy takes requests then, and keeps them until there is one."""
    dead = free_ports(1) if known else []
    waiting = Gateway()
    with waiting.running() as fallback, front(tmp_path, dead, fallback) as proxy:
        eventually(lambda: proxy.ask("/v1")[0] == 200)
        assert_unavailable(proxy.ask("/health", method="GET"))
        assert "/health" not in waiting.requests


@needs_haproxy
def test_when_a_gateway_dies_under_what_stands_in_that_is_not_a_500(tmp_path: Path) -> None:
    """Serve's own proxy says so in plain text; what a gateway says behind it goes through."""
    with Gateway().running() as fallback, front(tmp_path, [], fallback) as proxy:
        eventually(lambda: proxy.ask("/v1")[0] == 200)
        answer = proxy.ask("/plain", **{"x-request-id": "mine"})
        assert_unavailable(answer)
        assert answer[1]["x-request-id"] == "mine"
        assert proxy.ask("/full")[2] == {"error": "mine"}
    with Gateway().running() as gateway, front(tmp_path, [gateway]) as proxy:
        assert proxy.ask("/plain")[::2] == (500, "it died")


@needs_haproxy
def test_health_checks_reach_any_of_many_gateways(tmp_path: Path) -> None:
    with Gateway().running() as gateway:
        ports = [*free_ports(80), gateway]
        with front(tmp_path, ports, gateway) as proxy:
            eventually(lambda: proxy.ask("/health", method="GET")[0] == 200)


@needs_haproxy
def test_what_a_gateway_says_goes_through(tmp_path: Path) -> None:
    with Gateway().running() as gateway, front(tmp_path, [gateway]) as proxy:
        status, headers, content = proxy.ask("/full")
        assert (status, content) == (503, {"error": "mine"})
        assert "retry-after" not in headers
        assert proxy.ask("/v1", **{"x-request-id": "mine"})[2]["id"] == "mine"
        made = {proxy.ask("/v1")[2]["id"] for _ in range(2)}
        assert len(made) == 2
        assert None not in made


@needs_haproxy
def test_what_haproxy_refuses_by_itself_wears_the_envelope(tmp_path: Path) -> None:
    with Gateway().running() as gateway, front(tmp_path, [gateway]) as proxy:
        status, _, content = proxy.ask("/", method="PRI")
        assert (status, content) == (400, {"error": haproxy.MALFORMED})
        status, _, content = proxy.ask(f"127.0.0.1:{proxy.port}", method="CONNECT")
        assert (status, content) == (404, {"error": haproxy.NOT_FOUND})


@needs_haproxy
@pytest.mark.parametrize("size", [2, 100_000])
def test_a_request_survives_its_gateway(tmp_path: Path, size: int) -> None:
    """It died before it answered: another one gets the request, its body and its id."""
    dead, alive = Gateway(dead=True), Gateway()
    with (
        dead.running() as first,
        alive.running() as second,
        front(tmp_path, [first, second]) as proxy,
    ):
        answers = []

        def met_the_dead() -> bool:
            answers.append(proxy.ask("/v1", b"x" * size, **{"x-request-id": str(len(answers))}))
            return bool(dead.requests)

        eventually(met_the_dead)
    for number, (status, _, content) in enumerate(answers):
        assert (status, content) == (200, {"length": size, "id": str(number)})
    assert len(alive.requests) == len(answers)


@needs_haproxy
def test_a_request_that_kills_gateways_does_not_kill_them_all(tmp_path: Path) -> None:
    deadly = Gateway(dead=True)
    with (
        deadly.running() as gateway,
        front(tmp_path, [gateway]) as proxy,
        # HAProxy's answer, or none if the last try went over a connection that was in use.
        contextlib.suppress(http.client.RemoteDisconnected),
    ):
        assert_unavailable(proxy.ask("/v1"))
    assert 2 <= len(deadly.requests) <= 4


@needs_haproxy
def test_its_own_pages_listen_on_this_machine_alone(tmp_path: Path) -> None:
    """Serve's configuration shows HAProxy's statistics to the whole network."""
    with front(tmp_path, None) as proxy:
        binds = [line.split() for line in proxy.config.read_text().splitlines() if "bind " in line]
        assert len(binds) == 3
        assert all(address.startswith("127.0.0.1:") for _, address in binds)


# ---- without Ray -----------------------------------------------------------------------


def stand_in(folder: Path, check: str = "exit 0") -> str:
    """A program that prints its arguments; ``check`` is what it does when asked with -c."""
    program = folder / "real haproxy"
    program.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then {check}; fi\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_both_ways_run_it_without_splicing_and_pass_everything_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With splicing HAProxy 2.8 may not notice that a client has left."""
    binary = stand_in(tmp_path)
    config = tmp_path / "a file"
    arguments = ["-f", str(config), "-sf", "12"]
    script = haproxy.wrap_haproxy(binary, tmp_path)
    assert script.stat().st_mode & stat.S_IXUSR
    config.write_text("listen stats\n  bind *:8404\ndefaults\n")
    done = subprocess.run([script, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["-dS", *arguments]
    assert "bind 127.0.0.1:8404\n" in config.read_text()

    called: list[list[str]] = []
    monkeypatch.setattr(haproxy, "haproxy_binary", lambda: binary)
    monkeypatch.setattr(haproxy.sys, "argv", ["tidegate-haproxy", *arguments])
    monkeypatch.setattr(os, "execv", lambda path, argv: called.append([path, *argv]))
    config.write_text("listen stats\n  bind *:8404\ndefaults\n")
    haproxy.main()
    assert called == [[binary, binary, "-dS", *arguments]]
    # On a cluster others may want to see them.
    assert "bind *:8404\ndefaults\n    option http-buffer-request\n" in config.read_text()


@pytest.mark.parametrize("text", ["", "another template\nbackend x\n"])
def test_a_template_that_is_not_known_is_left_alone(text: str) -> None:
    assert haproxy.revised(text, local=False) == text


def test_what_haproxy_does_not_take_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Better Serve's own answers than no HAProxy."""
    config = tmp_path / "haproxy.cfg"
    config.write_text("defaults\n")
    haproxy.revise(stand_in(tmp_path, "echo 'unknown keyword' >&2; exit 1"), config, local=True)
    assert config.read_text() == "defaults\n"
    assert "unknown keyword" in capsys.readouterr().err
    haproxy.revise(stand_in(tmp_path), tmp_path / "missing", local=True)
    assert "missing" in capsys.readouterr().err


def test_no_haproxy_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haproxy, "haproxy_binary", lambda: None)
    with pytest.raises(SystemExit, match="there is no HAProxy"):
        haproxy.main()


def test_it_needs_nothing_but_the_standard_library() -> None:
    """What it imports keeps HAProxy waiting, at each change of the gateways."""
    command = [sys.executable, "-I", "-S", haproxy.__file__]
    done = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, check=False)
    assert "there is no HAProxy" in done.stderr
