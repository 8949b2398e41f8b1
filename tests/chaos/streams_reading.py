"""One answer of the API, read event by event from the wire, with the times in between."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple


class Told(NamedTuple):
    """One stream, to its end."""

    text: str
    error: str
    """The API's own sentence, if it refused or broke off."""
    broken: str
    """What is neither a whole answer nor a clear error."""
    first_s: float
    """Until the first event."""
    pause_s: float
    """The longest time between two events."""

    @property
    def whole(self) -> bool:
        """It is all that was asked for."""
        return not (self.error or self.broken)


class Reading:
    """One answer as it comes."""

    def __init__(self) -> None:
        self._time_s = asyncio.get_running_loop().time
        self._began_s = self._last_s = self._time_s()
        self._first_s = self._pause_s = 0.0
        self._text = ""
        self._error = ""
        self._finished = self._done = False
        self.broken = ""

    async def all_of(self, reader: asyncio.StreamReader) -> None:
        """To its end. EOFError or ValueError if it has no proper one."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        if not head.startswith("http/1.1 200"):
            length = int(head.split("content-length: ")[1].split("\r\n")[0])
            self._error = str(json.loads(await reader.readexactly(length))["error"]["message"])
            return
        while size := int(await reader.readline() or b"no size", 16):
            events = await reader.readexactly(size + 2)
            now_s = self._time_s()
            if self._first_s:
                self._pause_s = max(self._pause_s, now_s - self._last_s)
            self._first_s, self._last_s = self._first_s or now_s - self._began_s, now_s
            for event in events.split(b"\n\n"):
                self._take(event.strip().removeprefix(b"data: "))

    def _take(self, event: bytes) -> None:
        if event == b"[DONE]":
            self._done = True
        elif event:
            found = json.loads(event)
            if "error" in found:
                self._error = str(found["error"]["message"])
            for choice in found.get("choices", ()):
                self._text += choice["text"]
                self._finished = self._finished or choice["finish_reason"] is not None

    def told(self) -> Told:
        """What was read, up to now."""
        whole = self._finished and self._done
        broken = self.broken or ("" if whole or self._error else "the stream has no proper end")
        return Told(self._text, self._error, broken, self._first_s, self._pause_s)


def request_of(body: dict[str, Any], request: str) -> bytes:
    """As it is sent."""
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"x-request-id: {request}\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content
