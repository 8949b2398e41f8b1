"""A client that says any bytes it likes, and what came back."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from api.config.addresses import Address

QUIET_S = 0.15
"""A connection that was answered, and on which nothing came for so long, says no more."""
WAIT_S = 10.0


class Said(NamedTuple):
    """All that came on a connection."""

    raw: bytes
    closed: bool
    """Whether the server ended it."""

    @property
    def statuses(self) -> list[int]:
        """Of the answers, in order; those of 100 left out."""
        return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", self.raw) if found != b"100"]

    @property
    def heads(self) -> list[bytes]:
        """Status lines and headers, each with its line ends."""
        return re.findall(rb"HTTP/1\.1 \d{3} .*?\r\n\r\n", self.raw, re.DOTALL)

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The error objects of answers that are one, in OpenAI's shape."""
        return [json.loads(found)["error"] for found in re.findall(rb'\{"error":\{.*?\}\}', self.raw)]


@asynccontextmanager
async def connected(address: Address) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection, closed afterwards whatever happened."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield reader, writer
    finally:
        writer.close()


async def say(address: Address, *pieces: bytes, pause_s: float = 0.01, answers: int = 1) -> Said:
    """The pieces one after the other, then all that comes until the server closes, or has answered and is quiet."""
    async with connected(address) as (reader, writer):
        for number, piece in enumerate(pieces):
            if number:
                await asyncio.sleep(pause_s)
            writer.write(piece)
        return await heard(reader, answers)


async def heard(reader: asyncio.StreamReader, answers: int = 1) -> Said:
    """All that comes until the server closes, or has begun so many answers and is quiet."""
    said = Said(b"", closed=False)
    while True:
        try:
            async with asyncio.timeout(QUIET_S if len(said.statuses) >= answers else WAIT_S):
                piece = await reader.read(65536)
        except TimeoutError:
            return said
        except ConnectionError:
            piece = b""
        if not piece:
            return Said(said.raw, closed=True)
        said = Said(said.raw + piece, closed=False)


def request(body: bytes = b"", *headers: str, line: str = "POST /v1/completions HTTP/1.1") -> bytes:
    """A request with its length, unless the headers say how long it is."""
    sized = any(header.lower().startswith(("content-length", "transfer-encoding")) for header in headers)
    said = [line, "host: a", *headers, *(() if sized or not body else (f"content-length: {len(body)}",))]
    return "\r\n".join(said).encode("latin-1") + b"\r\n\r\n" + body
