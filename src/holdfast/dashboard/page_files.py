"""The dashboard's page: a few files, read once and served to everybody.

They hold no fact about the cluster, so they are open to all; the page asks for a token where one is needed, and shows
what its owner may see. Its policy lets a browser load nothing from elsewhere, and run nothing that is written into a
page or an answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import FastAPI, Response

from holdfast.dashboard.access import open_to_all

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/dashboard.css": ("dashboard.css", "text/css; charset=utf-8"),
    "/page/dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}


def add_page(app: FastAPI) -> None:
    folder = files("holdfast.dashboard") / "page"
    for path, (name, kind) in PAGE_FILES.items():
        app.add_api_route(path, _serving((folder / name).read_bytes(), kind), include_in_schema=False)


def _serving(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    @open_to_all
    async def serve() -> Response:
        return Response(content, headers={"content-type": kind, "content-security-policy": POLICY})

    return serve
