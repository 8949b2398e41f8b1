"""Request metadata: tenant, priority, deadline and trace in a request's headers, and its session in headers or body.

A session is one conversation: requests of it begin alike. An agent's program begins further ones for its sub-agents,
whose parent is the session that asked for them. Names are taken in this order; the first source that names a session
names its parent, too, or none:

1. headers, in the order of HEADERS: first our own, then those of each program;
2. the body's `metadata`: its `user_id`, as Claude Code writes it, then its session ids (`SESSION_KEYS`);
3. the body's `client_metadata`, as Codex writes it (`THREAD_KEYS`, `SESSION_KEYS`);
4. `prompt_cache_key`, and last `user`, or a `metadata.user_id` that names no session.

A name in another program's header that is not valid is ignored; only our own header is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from api.server.caller import TENANT_NAME
from api.server.errors import bad_parameter
from core.generation import PRIORITY_MAX

DEADLINE_MS_MAX = 24 * 3600 * 1000
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
_HEADER_NAMES = frozenset(
    {b"traceparent", b"x-contrail-tenant", b"x-contrail-priority", b"x-contrail-deadline-ms", b"x-session-id"}
)


def parse_headers(headers: Mapping[bytes, bytes]) -> RequestHeaders:
    """The metadata in the headers. ApiError for a bad header of ours; a bad traceparent is ignored, as W3C says."""
    if _HEADER_NAMES.isdisjoint(headers):
        return NO_HEADERS
    traceparent = headers.get(b"traceparent", b"")
    if b"x-session-id" in headers:
        _check_session(headers[b"x-session-id"])
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


NAME_MAX = 256
"""Characters of a name."""
USER_ID_MAX = 1024
"""Characters of a `user_id` that is looked into."""
OUR_SESSION = b"x-session-id"
WITHIN = "/"
"""Between a session and the agent within it."""


class SessionHeaders(NamedTuple):
    """The headers in which a program names a session."""

    session: bytes
    agent: bytes = b""
    """Of a sub-agent within the session: it is a session of its own, below that one …"""
    parent_agent: bytes = b""
    """… or below that of another sub-agent."""
    parent: bytes = b""
    """The session that began this one."""


HEADERS = (
    SessionHeaders(OUR_SESSION, parent=b"x-parent-session-id"),  # opencode's, too
    SessionHeaders(
        b"x-claude-code-session-id", agent=b"x-claude-code-agent-id", parent_agent=b"x-claude-code-parent-agent-id"
    ),
    SessionHeaders(b"thread-id", parent=b"x-codex-parent-thread-id"),  # Codex: its `session-id` is of all its threads
    SessionHeaders(b"session-id"),
    SessionHeaders(b"session_id"),  # Codex, earlier
    SessionHeaders(b"conversation_id"),  # the like
    SessionHeaders(b"conversation-id"),
    SessionHeaders(b"x-opencode-session", parent=b"x-parent-session-id"),
    SessionHeaders(b"x-session-affinity", parent=b"x-parent-session-id"),
)
"""The only table of them, in order of precedence."""
THREAD_KEYS = (("thread_id", ("x-codex-parent-thread-id", "parent_thread_id")),)
SESSION_KEYS = (
    ("session_id", ("parent_session_id",)),
    ("sessionId", ("parentSessionId",)),  # Qwen Code
)
"""Keys of an object that name a session, each with those that may name its parent."""
_SESSION_NAMES = frozenset(each.session for each in HEADERS)
_TOKEN = re.compile(rb"[!-~]{1,256}")  # NAME_MAX
_IN_USER_ID = re.compile(r"_session_([!-~]{1,256})\Z")  # the same


class Session(NamedTuple):
    """As the client names them; empty for none."""

    name: str = ""
    parent: str = ""


NO_SESSION = Session()


def find_session(headers: Mapping[bytes, bytes], body: object) -> Session:
    """The session that the headers or the body's fields name, in the order above."""
    if not _SESSION_NAMES.isdisjoint(headers):
        for names in HEADERS:
            if name := _token(headers, names.session):
                return _of_headers(headers, names, name)
    return _of_body(body)


def _of_headers(headers: Mapping[bytes, bytes], names: SessionHeaders, name: str) -> Session:
    agent = _token(headers, names.agent)
    if not agent:
        return _made(name, _token(headers, names.parent))
    above = _token(headers, names.parent_agent)
    return _made(f"{name}{WITHIN}{agent}", f"{name}{WITHIN}{above}" if above else name)


def _of_body(body: object) -> Session:
    metadata, user = getattr(body, "metadata", None), getattr(body, "user", None)
    client_metadata, cache_key = getattr(body, "client_metadata", None), getattr(body, "prompt_cache_key", None)
    if metadata is user is client_metadata is cache_key is None:
        return NO_SESSION
    user_id = metadata.get("user_id") if isinstance(metadata, dict) else None
    for session in (
        _in_user_id(user_id),
        _in_object(metadata, SESSION_KEYS),
        _in_object(client_metadata, (*THREAD_KEYS, *SESSION_KEYS)),
        Session(_text(cache_key)),
        _in_user_id(user),  # a gateway may put the one in the place of the other
        Session(_text(user) or _text(user_id)),
    ):
        if session.name:
            return session
    return NO_SESSION


def _in_user_id(value: object) -> Session:
    """The session in Claude Code's `user_id`: an object as JSON, or earlier `user_…_account_…_session_…`."""
    user_id = _string(value, USER_ID_MAX)
    if user_id is None:
        return NO_SESSION
    if user_id.startswith("{"):
        try:
            return _in_object(msgspec.json.decode(user_id), SESSION_KEYS)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return NO_SESSION
    found = _IN_USER_ID.search(user_id)
    return NO_SESSION if found is None else Session(found[1])


def _in_object(fields: object, keys: tuple[tuple[str, tuple[str, ...]], ...]) -> Session:
    if isinstance(fields, dict):
        for key, parents in keys:
            if name := _text(fields.get(key)):
                return _made(name, next(_texts(fields, parents), ""))
    return NO_SESSION


def _texts(fields: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[str]:
    return (text for key in keys if (text := _text(fields.get(key))))


def _made(name: str, parent: str) -> Session:
    """No session is its own parent: a program may name itself for its first one."""
    return Session(name, "" if parent == name else parent)


def _token(headers: Mapping[bytes, bytes], name: bytes) -> str:
    """The header's value, if it may be a name; else empty."""
    value = headers.get(name, b"") if name else b""
    return value.decode() if _TOKEN.fullmatch(value) else ""


def _text(value: object) -> str:
    """The value, if it may be a name; else empty."""
    text = _string(value, NAME_MAX)
    return text if text is not None and text.isprintable() else ""


ESCAPED_BYTES_MAX = 12
"""A character as JSON has at most so many bytes."""


def _string(value: object, chars_max: int) -> str | None:
    """The value, if it is a string of at most so many characters, or JSON of one."""
    if isinstance(value, msgspec.Raw):
        raw = bytes(value)
        if not raw.startswith(b'"') or len(raw) > ESCAPED_BYTES_MAX * chars_max:
            return None
        try:
            value = msgspec.json.decode(raw, type=str)
        except (msgspec.DecodeError, UnicodeError):
            return None
    return value if isinstance(value, str) and len(value) <= chars_max else None
