"""What a client or a gateway says about a request in headers, beside the body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from api.server.caller import TENANT_NAME
from api.server.errors import bad_parameter

DEADLINE_MS_MAX = 24 * 3600 * 1000
PRIORITY_MAX = 2**31 - 1
_SESSION = re.compile(rb"[!-~]{1,256}")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}[!-~]{0,64}")
# ten digits hold every bound here; int() of a longer text is work for nothing
_INTEGER = re.compile(rb"-?[0-9]{1,10}")


class RequestHeaders(NamedTuple):
    """None where nothing is said."""

    tenant: str | None
    priority: int | None
    deadline_ms: int | None
    traceparent: str | None


NO_HEADERS = RequestHeaders(None, None, None, None)
_NAMES = frozenset(
    {b"traceparent", b"x-contrail-tenant", b"x-contrail-priority", b"x-contrail-deadline-ms", b"x-session-id"}
)


def parse_headers(headers: Mapping[bytes, bytes]) -> RequestHeaders:
    """What the headers say. A bad one of ours is the caller's fault; a bad traceparent is ignored, as W3C says."""
    if _NAMES.isdisjoint(headers):
        return NO_HEADERS
    traceparent = headers.get(b"traceparent", b"")
    if b"x-session-id" in headers:
        _check_session(headers[b"x-session-id"])  # who names a session by it means us: `sessions` takes it
    return RequestHeaders(
        tenant=_tenant(headers.get(b"x-contrail-tenant")),
        priority=_integer(headers, "x-contrail-priority", -PRIORITY_MAX, PRIORITY_MAX),
        deadline_ms=_integer(headers, "x-contrail-deadline-ms", 1, DEADLINE_MS_MAX),
        traceparent=traceparent.decode() if _TRACEPARENT.fullmatch(traceparent) else None,
    )


def _tenant(raw: bytes | None) -> str | None:
    if raw is None:
        return None
    if not TENANT_NAME.fullmatch(raw):
        raise bad_parameter("x-contrail-tenant", "must be 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'")
    return raw.decode()


def _check_session(raw: bytes) -> None:
    if not _SESSION.fullmatch(raw):
        raise bad_parameter("x-session-id", "must be 1 to 256 printable ASCII characters without spaces")


def _integer(headers: Mapping[bytes, bytes], name: str, low: int, high: int) -> int | None:
    raw = headers.get(name.encode())
    if raw is None:
        return None
    if not _INTEGER.fullmatch(raw) or not low <= int(raw) <= high:
        raise bad_parameter(name, f"must be an integer from {low} to {high}")
    return int(raw)
