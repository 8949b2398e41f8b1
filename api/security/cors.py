"""Cors: which other sites' pages may ask; none unless an operator names them, each exactly."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from api.http_wire import STATE_KEY

AGE_S = 600
"""How long a browser may remember what it was told."""
READABLE = ("x-request-id", "retry-after", "x-contrail-worker", "x-contrail-queue-ms", "x-contrail-answer-ms")
"""What of an answer's headers a page may read, beside those that all may."""


class Cors:
    """Around the API; the debugging page stays closed to all other sites."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        self._app = app
        self._shared = CORSMiddleware(
            app,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            # a key is in a header and not in a cookie: a page can send no more than it was given
            allow_headers=["*"],
            expose_headers=list(READABLE),
            max_age=AGE_S,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        closed = scope["type"] != "http" or scope["path"].startswith("/debug")
        if not closed:
            scope["state"].pop(STATE_KEY, None)  # its headers depend on the answer's: all of them must pass here
        await (self._app if closed else self._shared)(scope, receive, send)
