"""The debugging page: its files, its access check, and the application that answers its questions."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from api.config.deployment_ref import DeploymentRef
from api.debug.page_access import PageAccess, token_of
from api.debug.page_proxy import PREFIX, PageProxy

PAGE = "index.html"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class _File(NamedTuple):
    content: bytes
    kind: str


class DebugPage:
    """The page of one front end, with the proxy to the process that answers the page's questions."""

    def __init__(self, connection: DeploymentRef) -> None:
        self._connection = connection
        self._proxy = PageProxy(connection.words, connection.data)

    def __repr__(self) -> str:
        return f"<DebugPage, {self._proxy!r}>"

    def app(self, *, with_token: bool) -> ASGIApp:
        """The page of a front end; `with_token` it asks for the deployment's."""
        return create_page(self._proxy, token_of(self._connection.key) if with_token else None)

    async def close(self) -> None:
        """The process has ended, if this front end started it."""
        await self._proxy.close()


def create_page(questions: ASGIApp, token: str | None) -> ASGIApp:
    """`/debug` and everything below it. `questions` answers below /debug/api/; the scope's path stays whole."""
    files = _files()

    async def page(_request: Request) -> Response:
        return _sent(files[PAGE])

    async def file(request: Request) -> Response:
        found = files.get(request.path_params["name"])
        return PlainTextResponse("there is no such file\n", 404) if found is None else _sent(found)

    routes = [
        Route("/debug", page),
        Route("/debug/", page),
        Route("/debug/static/{name}", file),
        Route(PREFIX + "/{path:path}", questions, methods=None),
    ]
    return PageAccess(Starlette(routes=routes), token)


def _files() -> dict[str, _File]:
    """The page's files by name, read once: they are few and small."""
    entries = Path(__file__).with_name("static").iterdir()
    return {entry.name: _File(entry.read_bytes(), KINDS[entry.suffix]) for entry in entries if entry.suffix in KINDS}


def _sent(file: _File) -> Response:
    return Response(file.content, headers={"content-type": file.kind})
