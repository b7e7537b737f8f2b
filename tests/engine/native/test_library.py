"""engine.native.library: compiled once where it can be, refused with a reason elsewhere."""

from pathlib import Path

import pytest

from engine.native import library
from engine.native.library import NativeUnavailable, load
from tests.engine.native import small


def test_the_library_is_compiled_once_and_kept() -> None:
    """Every replica's start would take seconds longer."""
    assert small.library() is small.library()


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
        '#!/bin/sh\n[ "$1" = --version ] && echo 1.0 && exit\n'
        'for last; do :; done\necho half > "$last"\necho "no such header" >&2\nexit 1\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(NativeUnavailable, match="failed: no such header"):
        load(tmp_path)
    assert list((tmp_path / "kernels").glob("**/*.so")) == []


def test_a_processor_without_the_instructions_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process would die of an illegal instruction."""
    monkeypatch.setattr(library, "_NEEDED", ("avx512f", "avx9000"))
    with pytest.raises(NativeUnavailable, match=r"lacks .*avx9000"):
        load(tmp_path)
