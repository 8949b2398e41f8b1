"""A front end that is none: it streams as ours does, and counts a prompt as cached as far as it has seen one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

EVENT = "data: {}\n\n"
ANSWER = 400
"""The first token of every answer; the next ones follow."""


class Speaking:
    """Two workers that are asked in turn; `broken` answers end without their last events."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.names: list[str] = []
        self.broken = False
        self.status = 200
        self._seen: set[tuple[int, ...]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = json.loads(await reader.readexactly(int(fields["content-length"])))
        self.names.append(fields["x-request-id"])
        self.asked.append(body)
        worker = (len(self.asked) - 1) % 2
        writer.write(f"HTTP/1.1 {self.status} -\r\nX-Contrail-Worker: decode-{worker}\r\n".encode())
        writer.write(b"x-contrail-queue-ms: 1.5\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in self._events(body):
            await asyncio.sleep(0)
            writer.write(_chunk(event))
        writer.close()

    def _events(self, body: dict[str, Any]) -> list[str]:
        if self.status != 200:
            return ["no", ""]
        told = [
            {"choices": [{"index": 0, "text": "a", "token_ids": [ANSWER + place]}]}
            for place in range(body["max_tokens"])
        ]
        usage = {
            "prompt_tokens": len(body["prompt"]),
            "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": self._cached(tuple(body["prompt"]))},
        }
        events = [EVENT.format(json.dumps(each)) for each in (*told, {"choices": [], "usage": usage})]
        return events[:1] if self.broken else [*events, EVENT.format("[DONE]"), ""]

    def _cached(self, prompt: tuple[int, ...]) -> int:
        prefixes = [prompt[:length] for length in range(len(prompt) + 1)]
        cached = max(len(prefix) for prefix in prefixes if not prefix or prefix in self._seen)
        self._seen.update(prefixes)
        return cached


def _chunk(text: str) -> bytes:
    return f"{len(text.encode()):x}\r\n{text}\r\n".encode()


@asynccontextmanager
async def speaking() -> AsyncIterator[tuple[Speaking, int]]:
    """One that listens, and its port."""
    made = Speaking()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    try:
        yield made, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()
