"""Bytes of answers that the application does not give, and answers to clients that know no chunks."""

from __future__ import annotations

import http
from collections.abc import Iterable

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from api.openai.errors import ApiError

ENDLESS = 1 << 62
"""A length that no body reaches."""


def head_and_body(error: ApiError, default_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A whole answer after which the connection closes."""
    body = error.body()
    named = {"content-type": "application/json", "content-length": len(body), "connection": "close", **error.headers}
    lines = [f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in named.items()]
    head = "\r\n".join(lines).encode() + b"\r\n"
    return head + b"".join(b"%b: %b\r\n" % pair for pair in default_headers) + b"\r\n" + body


def close_delimited(cycle: RequestResponseCycle) -> None:
    """Answers of no known length end with the connection: HTTP/1.0 knows no chunks. Before anything was sent."""
    send = cycle.send

    async def send_whole(message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            if all(name.lower() != b"content-length" for name, _ in message.get("headers", ())):
                cycle.chunked_encoding = False
                cycle.expected_content_length = ENDLESS
        elif message["type"] == "http.response.body":
            endless = cycle.expected_content_length > ENDLESS >> 1
            if endless and not message.get("more_body", False):
                cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_whole  # type: ignore[method-assign]
