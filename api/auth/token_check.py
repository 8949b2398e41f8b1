"""TokenCheck: routes for one kind of client that has a token of its own."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from api.server.errors import ApiError
from api.server.middleware import send_error


class TokenCheck:
    """Around the application: a request without the token is answered with 401, one with a wrong token with 403."""

    def __init__(self, app: ASGIApp, header: bytes, kind: str, token: str) -> None:
        """The header has the token; `kind` names it in errors and their codes: `{kind}_token_missing`."""
        self._app = app
        self._header = header
        self._kind = kind
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = next((bytes(value) for header, value in scope["headers"] if header == self._header), b"")
        if not given:
            missing = f"no {self._kind} token was given: send it as `{self._header.decode()}`"
            await send_error(send, ApiError(401, missing, code=f"{self._kind}_token_missing"))
        elif not hmac.compare_digest(given, self._token):
            wrong = f"this {self._kind} token is not the one of this deployment"
            await send_error(send, ApiError(403, wrong, code=f"{self._kind}_token_wrong"))
        else:
            await self._app(scope, receive, send)
