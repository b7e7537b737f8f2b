"""HAProxy as Serve is to run it."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from deployments import haproxy


def stand_in(folder: Path) -> str:
    """A program that prints its arguments."""
    program = folder / "real haproxy"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_both_ways_run_it_without_splicing_and_pass_everything_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With splicing HAProxy 2.8 may not notice that a client has left."""
    binary = stand_in(tmp_path)
    config = tmp_path / "a file"
    config.touch()
    arguments = ["-f", str(config), "-sf", "12"]
    script = haproxy.wrap_haproxy(binary, tmp_path)
    assert script.stat().st_mode & stat.S_IXUSR
    done = subprocess.run([script, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["-dS", *arguments]

    called: list[list[str]] = []
    monkeypatch.setattr(haproxy, "haproxy_binary", lambda: binary)
    monkeypatch.setattr(haproxy.sys, "argv", ["tidegate-haproxy", *arguments])
    monkeypatch.setattr(os, "execv", lambda path, argv: called.append([path, *argv]))
    haproxy.main()
    assert called == [[binary, binary, "-dS", *arguments]]


def test_its_own_pages_listen_on_this_machine_alone(tmp_path: Path) -> None:
    """Serve's configuration shows HAProxy's statistics to the whole network."""
    config = tmp_path / "haproxy.cfg"
    config.write_text(
        "frontend metrics\n    bind :9101\nfrontend api\n    bind 0.0.0.0:8000\n"
        "listen stats\n  bind *:8404\n"
    )
    script = haproxy.wrap_haproxy(stand_in(tmp_path), tmp_path)
    subprocess.run([script, "-db", "-f", config], check=True)
    assert config.read_text() == (
        "frontend metrics\n    bind 127.0.0.1:9101\nfrontend api\n    bind 0.0.0.0:8000\n"
        "listen stats\n  bind 127.0.0.1:8404\n"
    )


def test_no_haproxy_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haproxy, "haproxy_binary", lambda: None)
    with pytest.raises(SystemExit, match="there is no HAProxy"):
        haproxy.main()
