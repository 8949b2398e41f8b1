"""Cross-origin protection: web pages of other sites, and rebound DNS names, get no answer from the API.

1. On loopback without keys, Host is no name in the public DNS: a page that made its name point here would read answers
   as its own. `frontend.hosts` lists further names.
2. Without keys, a request of another site's page is refused, unless `frontend.cors` has its origin. A page cannot send
   a key that it does not have, so that keys close the API to pages by themselves.
3. A browser sends JSON bodies alone: other types go out without a preflight. Programs that are no browsers send neither
   `Origin` nor `Sec-Fetch-Site`, and any type.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping
from functools import lru_cache

from starlette.types import ASGIApp, Receive, Scope, Send

from api.auth.access_policy import AccessPolicy
from api.config.addresses import is_public_name
from api.server.errors import ApiError, error_for_path
from api.server.exchange import EXCHANGE_KEY, HttpExchange
from api.server.middleware import send_error

PAGE = "/debug"
"""Below it the page has its own check."""
OWN_SITE = frozenset({b"same-origin", b"none"})
"""Values of `Sec-Fetch-Site` for requests of our own page, or of the user."""
WEB = (b"http://", b"https://", b"null")
"""Beginnings of origins that a web page can have. Others are those of applications, which a page cannot forge."""
READING = frozenset({"GET", "HEAD"})
JSON_BODY = re.compile(rb"\s*application/([\w.-]+\+)?json\s*(;|$)", re.IGNORECASE)

PORT = re.compile(r":\d*$")
HOSTS_KEPT = 256
"""Host headers whose kind is remembered: parsing an address takes as long as fifty lookups."""
NAME_CHARS_MAX = 253
"""Longest name in the DNS."""
FOREIGN_HOST = (
    "Host names {name!r}, and this API answers to localhost, IP addresses and private names alone: list the name in "
    "`frontend.hosts`, or use API keys"
)
FOREIGN_SITE = "this API answers no page of another site: list the page's origin in `frontend.cors`, or use API keys"
NO_JSON = "a browser must send the body as JSON: set the header `Content-Type: application/json`"


@lru_cache(HOSTS_KEPT)
def foreign_host(host: str, hosts: frozenset[str] = frozenset()) -> str:
    """The public name in this Host header, unless it is one of `hosts`; else empty."""
    name = PORT.sub("", host)
    return name[:NAME_CHARS_MAX] if is_public_name(name) and name.lower() not in hosts else ""


class CrossOriginProtection:
    """Around the application of a front end with this policy."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy) -> None:
        self._app = app
        self._hosts = frozenset(policy.hosts) if policy.hosts or policy.local else None
        self._origins = frozenset(origin.encode() for origin in policy.cors)
        self._has_keys = policy.keyring is not None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and not scope["path"].startswith(PAGE) and (error := self._fault(scope)):
            return send_error(send, error_for_path(scope["path"], error, scope["state"]["request_id"]))
        return self._app(scope, receive, send)

    def _fault(self, scope: Scope) -> ApiError | None:
        exchange: HttpExchange | None = scope["state"].get(EXCHANGE_KEY)
        headers = dict(scope["headers"]) if exchange is None else exchange.headers
        host = headers.get(b"host", b"")
        if self._hosts is not None and (name := foreign_host(host.decode("latin-1"), self._hosts)):
            return ApiError(403, FOREIGN_HOST.format(name=name), code="host_not_allowed")
        if self._has_keys or not (b"origin" in headers or b"sec-fetch-site" in headers):
            return None
        if self._is_foreign(scope["method"], headers):
            return ApiError(403, FOREIGN_SITE, code="origin_not_allowed")
        if scope["method"] == "POST" and not JSON_BODY.match(headers.get(b"content-type", b"")):
            return ApiError(415, NO_JSON, code="unsupported_content_type")
        return None

    def _is_foreign(self, method: str, headers: Mapping[bytes, bytes]) -> bool:
        """True for a browser's request in the name of another site, but for links that the user follows."""
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if origin is not None and (origin in self._origins or not origin.startswith(WEB)):
            return False
        if site in OWN_SITE:
            return False
        if origin is not None:
            return origin.partition(b"://")[2] != headers.get(b"host")
        return not (method in READING and headers.get(b"sec-fetch-mode") == b"navigate")
