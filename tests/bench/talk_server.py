"""A front end that is none: it answers chats whole, in chunks or as a stream, and notes what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

TEXT = ["", "al", "pha"]
"""Of a stream: the first part has the role alone."""
WHOLE, CHUNKED, BROKEN = "whole", "chunked", "broken"


class TalkServer:
    """Answers are alike; `status` and `form` can be changed, and `answering` can be held back."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.connections = 0
        self.status, self.form = 200, WHOLE
        self.part_s = 0.0
        """Between the parts of a stream."""
        self.answering = asyncio.Event()
        self.answering.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
                body = json.loads(await reader.readexactly(length))
                self.asked.append(body)
                await self.answering.wait()
                await self._answer(body, writer)
        except EOFError:
            writer.close()

    async def _answer(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        prompt = sum(len(message["content"]) for message in body["messages"])
        usage = {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": prompt // 2}}
        writer.write(f"HTTP/1.1 {self.status} -\r\n".encode())
        if body.get("stream"):
            writer.write(b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            events: list[dict[str, Any]] = [{"choices": [{"delta": {"content": text}}]} for text in TEXT]
            for event in [*events, {"choices": [{"delta": {}}]}, {"choices": [], "usage": usage}]:
                writer.write(_chunk(f"data: {json.dumps(event)}\n\n".encode()))
                await asyncio.sleep(self.part_s)
            writer.write(_chunk(b"data: [DONE]\n\n") + _chunk(b""))
            return
        answer = json.dumps({"choices": [{"message": {"content": "".join(TEXT)}}], "usage": usage}).encode()
        if self.form == CHUNKED:
            writer.write(b"Transfer-Encoding: chunked\r\n\r\n" + _chunk(answer[:9]) + _chunk(answer[9:]) + _chunk(b""))
        else:
            writer.write(b"Content-Length: %d\r\n\r\n" % len(answer) + answer[: 9 if self.form == BROKEN else None])
        if self.form == BROKEN:
            writer.close()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@asynccontextmanager
async def talk_server() -> AsyncIterator[tuple[TalkServer, int]]:
    """One that listens, and its port."""
    made = TalkServer()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, limit=2**22)
    try:
        yield made, server.sockets[0].getsockname()[1]
    finally:
        server.close()
