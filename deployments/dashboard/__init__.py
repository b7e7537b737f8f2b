"""The live page at ``/dashboard``: plain files, which need nothing from elsewhere."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

FILES: Final[Mapping[str, str]] = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "history.js": "text/javascript; charset=utf-8",
    "view.js": "text/javascript; charset=utf-8",
}

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page(name: str) -> Response:
    """Return one of the page's files.

    Raises:
        HTTPException: it has none of that name (404).
    """
    if name not in FILES:
        raise HTTPException(404)
    content = files(__name__).joinpath(name).read_bytes()
    return Response(content, media_type=FILES[name], headers=dict(HEADERS))
