"""A bounded GET request over HTTP/1.1 to the operations listener of a process, without an HTTP library."""

from __future__ import annotations

import asyncio
import json
from typing import NamedTuple

from api.config.addresses import split_address

ANSWER_BYTES_MAX = 1 << 20


class HttpResponse(NamedTuple):
    """Status and body of an answer."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        """True for status 200."""
        return self.status == 200

    @property
    def reason(self) -> str:
        """The conditions for readiness that are missing (`waiting_for` of the JSON); empty if there are none."""
        try:
            answer = json.loads(self.body)
        except ValueError:
            return ""
        waiting = answer.get("waiting_for") if isinstance(answer, dict) else None
        if isinstance(waiting, dict):
            return ", ".join(f"{what} ({why})" for what, why in waiting.items())
        return ", ".join(map(str, waiting)) if isinstance(waiting, list) else ""


async def http_get(address: str, path: str, timeout_s: float, token: str | None = None) -> HttpResponse | None:
    """The answer of `GET path` with this bearer token; None if there was none in time, or it was not HTTP."""
    host, port = split_address(address)
    try:
        async with asyncio.timeout(timeout_s):
            return await _get(host, port, path, token)
    except (OSError, TimeoutError, ValueError, IndexError):
        return None


async def _get(host: str, port: int, path: str, token: str | None) -> HttpResponse:
    reader, writer = await asyncio.open_connection(host, port, limit=ANSWER_BYTES_MAX)
    try:
        key = f"Authorization: Bearer {token}\r\n" if token else ""
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{key}Connection: close\r\n\r\n".encode())
        received = b""
        while (part := await reader.read(ANSWER_BYTES_MAX)) and len(received) < ANSWER_BYTES_MAX:
            received += part
    finally:
        writer.close()
    head, _, body = received.partition(b"\r\n\r\n")
    return HttpResponse(int(head.split(b" ", 2)[1]), body)
