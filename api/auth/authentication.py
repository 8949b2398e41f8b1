"""Authentication by API key: every request needs one, but for those of OPEN, the page and the reports of proxies.
The last two have tokens of their own."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from api.auth.api_keys import ApiKey
from api.auth.keyring import Keyring
from api.server.caller import CALLER, Caller
from api.server.errors import RETRY_AFTER_S, ApiError, error_for_path
from api.server.middleware import send_error

OPEN = frozenset({"/health", "/openapi.json", "/docs", "/debug", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
"""Health, the API description in both forms, and the page and the changes of adapters, which have tokens of their own.
Every other route needs a key."""
OPEN_BELOW = ("/debug/", "/v1/route/")
"""The page, and the reports of `api.route.reservation_reports`: each has a token of its own."""
MISSING = "no API key was given: send it as `Authorization: Bearer KEY`, or as `x-api-key`"
WRONG = "this API key is not valid here: it is unknown, revoked or expired"
UNREADABLE = "this server cannot read its API keys at the moment, and accepts none: its operator must mend their file"
SEVERAL = "two different API keys were sent: send one, in `Authorization` or in `x-api-key`"
NO_BEARER = "`Authorization` does not begin with `Bearer `: send `Authorization: Bearer KEY`"


class Authentication:
    """Around the application. With a keyring every request has its key's `Caller`, without one it has none."""

    def __init__(self, app: ASGIApp, keyring: Keyring | None) -> None:
        self._app = app
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        CALLER.set(None)
        if self._keyring is not None and scope["type"] == "http" and not _is_open(scope["path"]):
            shown = _shown(scope)
            # of two different ones, which was meant?
            key = self._keyring.find(*shown) if len(shown) == 1 else None
            if key is None:
                closed = len(shown) == 1 and self._keyring.unreadable
                await send_error(send, _unreadable(scope) if closed else _refusal(scope, _fault(scope, shown)))
                return
            CALLER.set(_caller(key))
        await self._app(scope, receive, send)


def _refusal(scope: Scope, message: str) -> ApiError:
    """401 as the clients of the route know it."""
    error = ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
    return error_for_path(scope["path"], error, scope["state"]["request_id"])


def _unreadable(scope: Scope) -> ApiError:
    """503 while no key can be told from another, as the clients of the route know it."""
    headers = {"retry-after": str(RETRY_AFTER_S)}
    error = ApiError(503, UNREADABLE, type="server_error", code="keys_unreadable", headers=headers)
    return error_for_path(scope["path"], error, scope["state"]["request_id"])


def _fault(scope: Scope, shown: set[bytes]) -> str:
    """The fault of the keys in a request, without their text."""
    if shown:
        return WRONG if len(shown) == 1 else SEVERAL
    sent = [value.split()[0].lower() for name, value in scope["headers"] if name == b"authorization" and value.strip()]
    return NO_BEARER if set(sent) - {b"bearer"} else MISSING


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(OPEN_BELOW)


def _caller(key: ApiKey) -> Caller:
    return Caller(key.name, key.tenant, frozenset(key.models), key.gateway, key.priority)


def _shown(scope: Scope) -> set[bytes]:
    """The keys in the request."""
    return {secret for name, value in scope["headers"] if (secret := _key_in(name, value))}


def _key_in(name: bytes, value: bytes) -> bytes:
    if name == b"x-api-key":
        return value.strip()
    if name == b"authorization":
        scheme, _, secret = value.partition(b" ")
        return secret.strip() if scheme.lower() == b"bearer" else b""
    return b""
