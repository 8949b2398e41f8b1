"""Page access: the check of each request to the page, and the headers that isolate it from other sites.

1. With API keys, and beyond loopback, a request must have the token: once as `?token=`, then in a cookie that scripts
   cannot read. Requests of a proxy on this machine look like those of loopback, so the address alone proves nothing.
2. On loopback without API keys there is no token. The Host header must name loopback, against DNS rebinding, and
   requests that a proxy forwarded are refused.
3. Other sites get nothing: no CORS, no frames, no referrer, and no script or style but the page's own files.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.config.addresses import is_loopback
from core.keys import DeploymentKey

COOKIE = "contrail_debug"
TOKEN_BYTES = 16
FIELDS_MAX = 64
"""Most query fields in an address; the page itself uses at most four."""
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
TOO_MANY = (400, f"this address has more than {FIELDS_MAX} fields: open it without what was added")


def token_of(key: DeploymentKey) -> str:
    """The same for every front end of a deployment: 32 hex digits."""
    return hashlib.blake2b(b"debug page", key=key.secret, digest_size=TOKEN_BYTES).hexdigest()


class PageAccess:
    """ASGI middleware around the page's application; with a token, or without one on loopback."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        given = _token_in(scope["query_string"])
        fault = TOO_MANY if given is None else self._fault(headers, given)
        fresh = self._token is not None and bool(given)

        async def send_closed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*_without(message.get("headers", ()), HEADERS), *_encoded(HEADERS)]
                if fresh and fault is None:
                    message["headers"].append((b"set-cookie", self._cookie(headers, scope["scheme"]).encode()))
            await send(message)

        if fault is not None:
            status, sentence = fault
            await PlainTextResponse(sentence + "\n", status)(scope, receive, send_closed)
        else:
            await self._app(scope, receive, send_closed)

    def _fault(self, headers: Headers, given: str) -> tuple[int, str] | None:
        """Status and sentence if the request is refused; None if it is answered."""
        elsewhere = headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}
        if elsewhere and headers.get("sec-fetch-mode") != "navigate":
            return 403, "this page answers to no other site"
        if self._token is None:
            return _not_from_here(headers)
        known = cookie_parser(headers.get("cookie", "")).get(_cookie_name(headers), "")
        if _same(given, self._token) or _same(known, self._token):
            return None
        return 401, "this page needs its token: open the address that `contrail debug` prints"

    def _cookie(self, headers: Headers, scheme: str) -> str:
        secure = "; Secure" if scheme == "https" else ""
        return f"{_cookie_name(headers)}={self._token}; Path=/debug; HttpOnly; SameSite=Strict{secure}"


def _token_in(query: bytes) -> str | None:
    """The token in the address, empty if there is none; None if the address has more than FIELDS_MAX fields."""
    try:
        return parse_qs(query.decode("latin-1"), max_num_fields=FIELDS_MAX).get("token", [""])[0]
    except ValueError:
        return None


def _cookie_name(headers: Headers) -> str:
    """The name has the port: cookies do not, and two deployments on one machine must not overwrite each other's."""
    port = _host(headers)[1]
    return f"{COOKIE}_{port}" if port.isdigit() else COOKIE


def _host(headers: Headers) -> tuple[str, str]:
    """Name and port in the Host header; the port may be empty."""
    host = headers.get("host", "")
    name, colon, port = host.rpartition(":")
    return (name, port) if colon and not host.endswith("]") else (host, "")


def _not_from_here(headers: Headers) -> tuple[int, str] | None:
    name = _host(headers)[0]
    if not is_loopback(name):
        return 403, f"the page is served on loopback only; {name!r} is another name: ask for 127.0.0.1 or localhost"
    if any(header in headers for header in FORWARDED):
        return 403, "the page is served on loopback without a token, so not through a proxy: let it listen elsewhere"
    return None


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _without(headers: Iterable[tuple[bytes, bytes]], names: Iterable[str]) -> list[tuple[bytes, bytes]]:
    gone = {name.encode() for name in names}
    return [(name, value) for name, value in headers if name.lower() not in gone]


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]
