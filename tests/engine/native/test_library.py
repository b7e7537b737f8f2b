"""engine.native.library: compiled once where it can be, refused with a reason elsewhere."""

import shutil
from pathlib import Path

import pytest

from engine.native import library
from engine.native.library import NativeUnavailable, load
from tests.engine.native import small


@pytest.fixture
def compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What is compiled from now on: by a copy of the library that is there."""
    made = Path(small.library().calls._name)
    done: list[Path] = []

    def copy(compiler: list[str], path: Path) -> None:
        done.append(path)
        shutil.copy(made, path)

    monkeypatch.setattr(library, "_compile", copy)
    return done


def test_the_library_is_compiled_once_and_kept(tmp_path: Path, compiles: list[Path]) -> None:
    """Every replica's start would take seconds longer."""
    for _ in range(2):
        load.__wrapped__(tmp_path)
    assert len(compiles) == 1


def test_a_file_that_is_no_library_is_made_anew(tmp_path: Path, compiles: list[Path]) -> None:
    """A disk that was full once would leave a machine with slow kernels for ever."""
    load.__wrapped__(tmp_path / "good")
    broken = tmp_path / "bad" / "kernels" / compiles[0].name
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"half")
    load.__wrapped__(tmp_path / "bad")
    assert compiles[1:] == [broken]


def test_without_a_home_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user may have none, and would get no model at all."""

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    small.library()
    monkeypatch.setattr(library, "cache_root", nowhere)
    with pytest.raises(NativeUnavailable, match="cannot be used: Could not determine home"):
        load.__wrapped__()


def test_without_a_compiler_the_reason_names_what_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.library()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NativeUnavailable, match=r"no C\+\+ compiler .*no-such-compiler"):
        load(tmp_path)


def test_a_compiler_that_fails_is_quoted_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half-written library would be loaded at the next start."""
    small.library()
    compiler = tmp_path / "c++"
    compiler.write_text(
        '#!/bin/sh\nfor last; do :; done\n[ "$last" = --version ] && echo 1.0 && exit\n'
        'for last; do :; done\necho half > "$last"\necho "no such header" >&2\nexit 1\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", f"{compiler} -Wall")
    with pytest.raises(NativeUnavailable, match="-Wall failed: no such header"):
        load(tmp_path)
    assert list((tmp_path / "kernels").glob("**/*.so")) == []


def test_a_processor_without_the_instructions_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process would die of an illegal instruction."""
    monkeypatch.setattr(library, "_NEEDED", ("avx512f", "avx9000"))
    with pytest.raises(NativeUnavailable, match=r"lacks .*avx9000"):
        load(tmp_path)
