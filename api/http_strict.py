"""What a request's headers may not say, where the parser is more lenient than RFC 9112."""

from __future__ import annotations

from collections.abc import Iterable

VERSIONS = ("1.1", "1.0")


def fault_of(version: str, headers: Iterable[tuple[bytes, bytes]], *, asks_upgrade: bool) -> str | None:
    """Why this request is refused, in words; None if it is not. Names of headers are in lower case."""
    hosts, codings = 0, []
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding":
            codings.append(value.strip().lower())
    if version not in VERSIONS:
        return f"HTTP/{version} is not spoken here: use HTTP/1.1"
    if hosts > 1 or (not hosts and version == "1.1"):
        return f"there must be one Host header, not {hosts}"
    if codings and (codings != [b"chunked"] or version == "1.0"):
        return "Transfer-Encoding: the only one is chunked, in HTTP/1.1"
    if asks_upgrade:
        return "no other protocol is spoken here, and nothing is tunnelled"
    return None
