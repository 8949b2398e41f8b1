"""What holds for every answer of the API: a request id in its header, and for every error the shape of its API."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actors.router.dispatch import ON_ROUTED
from api.anthropic.errors import told_at
from api.http_wire import STATE_KEY, ClientWire
from api.openai.errors import ApiError, internal_error, stopping
from api.openai.exchange import MODEL_KEY
from api.openai.requests.headers import tenant_of
from api.security.trace import Trace
from api.silent_traceback import silent_traceback
from core.clock import Clock
from core.entropy import random_hex

Failed = Callable[[str, str, str, Exception], None]
"""`Backend.failed`."""

log = logging.getLogger(__name__)

REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
"""A request id that a client may choose."""


class Answers:
    """The outermost layer: after it every answer has `x-request-id`, and no exception reaches the server.

    `failed` hears of each failure inside that a request of the API met: its id, its model as far as it is known, what
    its client calls its tenant, and the failure. With a clock, answers also say where their request went
    (`api.security.trace`); nothing is done per chunk.
    """

    def __init__(self, app: ASGIApp, failed: Failed = lambda *_: None, traced_by: Clock | None = None) -> None:
        self._app = app
        self._failed = failed
        self._traced_by = traced_by

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        # a route that finds another one in the body may put it here
        state["request_id"] = _request_id(scope)
        trace = None if self._traced_by is None else Trace(self._traced_by)
        ON_ROUTED.set(None if trace is None else trace.routed)
        started = False

        def named() -> list[tuple[bytes, bytes]]:
            return [(b"x-request-id", state["request_id"].encode()), *(trace.headers() if trace else ())]

        wire: ClientWire | None = state.get(STATE_KEY)
        if wire is not None:
            wire.named = named

        async def send_named(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *named()]
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except asyncio.CancelledError:
            if started or (wire is not None and wire.began):
                raise
            await refuse(send_named, told_at(scope["path"], stopping(), state["request_id"]))
        except Exception as error:  # noqa: BLE001 - whatever it was, other requests go on
            self._tell(scope, error)
            if not started and (wire is None or not wire.began):
                await refuse(send_named, told_at(scope["path"], internal_error(), state["request_id"]))
            # else the server cuts the connection, so that the client sees that the answer is not whole

    def _tell(self, scope: Scope, error: Exception) -> None:
        """The process's log has the failure; of a request of the API the event log has it, too."""
        state = scope["state"]
        text = "a request failed inside:\n%s"
        log.error(text, silent_traceback(error), extra={"request_id": state["request_id"]})
        if MODEL_KEY in state:
            self._failed(state["request_id"], state[MODEL_KEY], tenant_of(scope["headers"]), error)


async def refuse(send: Send, error: ApiError) -> None:
    """The error has been handed to the server as the whole answer."""
    body = error.body()
    named = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    headers = [(name.encode(), value.encode()) for name, value in named.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(value):
            return str(value.decode())
    return f"req-{random_hex(8)}"
