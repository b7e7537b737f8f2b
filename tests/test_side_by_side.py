"""What runs all tests in several processes loses none of them, and none of their failures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WELL = "def test_well():\n    pass\n"
CLUSTER = "import pytest\n\n@pytest.mark.cluster\n"
APART = f"{CLUSTER}@pytest.mark.apart\n"
ENGINE = "import pytest\n\n@pytest.mark.engine\n"
CHECK = "[sys.executable, '-c', 'import sys; sys.exit({status})']"
RUN = "from tests.side_by_side import main; sys.exit(main([], {check}))"
ILL = "def test_ill():\n    assert 0\n"


@pytest.mark.parametrize(
    ("text", "check", "status", "closing"),
    [
        (f"{CLUSTER}{ILL}\n{WELL}", 0, 1, "1 failed, 1 passed"),
        (f"{APART}{ILL}\n{WELL}", 0, 1, "1 failed, 1 passed"),
        (f"{CLUSTER}{WELL}\n{ILL}", 0, 1, "1 passed, 1 failed"),
        (f"{ENGINE}{ILL}\n{WELL}", 0, 1, "1 failed, 1 passed"),
        (WELL, 0, 0, "1 passed"),
        (f"import atexit\natexit.register(print, 'late')\n{APART}{WELL}", 0, 0, "1 passed"),
        (WELL, 3, 3, "1 passed"),
        ("", 0, 5, "no tests ran"),
    ],
    ids=[
        "first",
        "second",
        "quick",
        "engine",
        "no cluster",
        "something said at the end",
        "check",
        "none",
    ],
)
def test_each_test_runs_once_and_counts(
    text: str, check: int, status: int, closing: str, tmp_path: Path
) -> None:
    markers = "[pytest]\nmarkers =\n    cluster: one\n    apart: one\n    engine: one\n"
    (tmp_path / "pytest.ini").write_text(markers)
    (tmp_path / "test_some.py").write_text(text)
    run = RUN.format(check=CHECK.format(status=check))
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({str(ROOT)!r})\n{run}"],
        cwd=tmp_path,
        # Plugins take seconds to load.
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout
    assert done.stdout.splitlines()[-1].startswith(f"{closing} in ")
