"""What holds for every answer of the API: a request id in its header, and OpenAI's shape for every error."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.openai.errors import ApiError, internal_error, stopping

log = logging.getLogger(__name__)

REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
"""A request id that a client may choose."""


class Answers:
    """The outermost layer: after it every answer has `x-request-id`, and no exception reaches the server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def send_named(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except asyncio.CancelledError:
            if started:
                raise
            await _refuse(send_named, stopping())
        except Exception:
            log.exception("a request failed inside", extra={"request_id": request_id})
            if started:
                raise  # the server cuts the connection, so that the client sees that the answer is not whole
            await _refuse(send_named, internal_error())


async def _refuse(send: Send, error: ApiError) -> None:
    named = {"content-type": "application/json", **error.headers}
    headers = [(name.encode(), value.encode()) for name, value in named.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": error.body()})


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(value):
            return str(value.decode())
    return f"req-{secrets.token_hex(8)}"
