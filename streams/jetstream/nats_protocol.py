"""NatsProtocol: the messages of one connection, read from its bytes and written among them; the rest is the client
library's.

The library connects, logs in, pings and notices a lost connection. Its way of handing over a message costs more than
all that we do with it (headers as an e-mail, a queue and a task for each subscription), so this stands between the
socket and the library: MSG and HMSG go to our callbacks at once, every other line to the library as it came. What is
sent goes straight to the socket; the library sends only its pings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from nats.aio.client import Client

from core.errors import Refused, Unavailable

logger = logging.getLogger(__name__)

OnMessage = Callable[[bytes, bytes, bytes, bytes], None]
"""Called with subject, reply, payload and headers (empty if there are none); must not raise, nor block."""

_CRLF = b"\r\n"


class NatsProtocol(asyncio.Protocol):
    """See the module's text; made for a client that is connected."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._transport = _transport(client)
        self._library: Any = self._transport.get_protocol()
        self._listeners: dict[int, OnMessage] = {}
        self._buffer = bytearray()
        self._needed = 0
        """Bytes of the buffer that must be there before it is worth looking."""
        self._transport.set_protocol(self)

    def __repr__(self) -> str:
        return f"<NatsProtocol with {len(self._listeners)} subscriptions{', closing' if self.closing else ''}>"

    @property
    def closing(self) -> bool:
        """True if nothing can be sent any more."""
        return bool(self._transport.is_closing())

    def send(self, subject: str, payload: bytes, reply: str, headers: bytes = b"") -> None:
        """The message is on its way. `headers` come from `header_block`. Raises Unavailable or Refused."""
        size = len(payload) + len(headers)
        if size > self._client.max_payload:
            raise Refused(f"{size} bytes are more than the {self._client.max_payload} that NATS takes")
        if headers:
            self._write(f"HPUB {subject} {reply} {len(headers)} {size}\r\n".encode(), headers, payload, _CRLF)
        else:
            self._write(f"PUB {subject} {reply} {size}\r\n".encode(), payload, _CRLF)

    def subscribe(self, subject: str, on_message: OnMessage) -> int:
        """Every message of the subject is given to `on_message`, in order, until this is unsubscribed."""
        self._client._sid += 1  # noqa: SLF001 - the library numbers its own with it
        number: int = self._client._sid  # noqa: SLF001
        self._listeners[number] = on_message
        self._write(f"SUB {subject} {number}\r\n".encode())
        return number

    def unsubscribe(self, number: int) -> None:
        """No message of that subscription is delivered any more. Without a connection there is no broker to tell."""
        if self._listeners.pop(number, None) is not None and not self.closing and self._client.is_connected:
            self._write(f"UNSUB {number}\r\n".encode())

    def _write(self, *parts: bytes) -> None:
        if self.closing or not self._client.is_connected:
            raise Unavailable("not connected to NATS")
        self._transport.write(b"".join(parts))

    # --- asyncio.Protocol --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        size = len(buffer)
        if size < self._needed:
            return
        self._needed = start = 0
        while start < size:
            end = buffer.find(_CRLF, start)
            if end < 0:
                break
            line = bytes(buffer[start:end])
            if line.startswith((b"HMSG ", b"MSG ")):
                words = line.split()
                payload_end = end + 2 + int(words[-1])
                if payload_end + 2 > size:
                    self._needed = payload_end + 2 - start
                    break
                self._take(words, bytes(buffer[end + 2 : payload_end]))
                start = payload_end + 2
            else:
                start = end + 2
                self._library.data_received(line + _CRLF)
        del buffer[:start]

    def _take(self, words: list[bytes], content: bytes) -> None:
        # MSG subject sid [reply] size; HMSG subject sid [reply] size_of_headers size
        on_message = self._listeners.get(int(words[2]))
        if on_message is None:
            return
        has_headers = len(words[0]) == len(b"HMSG")
        reply = words[3] if len(words) == 5 + has_headers else b""
        headers_end = int(words[-2]) if has_headers else 0
        try:
            on_message(words[1], reply, content[headers_end:], content[:headers_end])
        except Exception:  # by any defect: the messages behind this one must be read
            logger.exception("a NATS callback failed")

    def connection_lost(self, exc: Exception | None) -> None:
        self._library.connection_lost(exc)

    def eof_received(self) -> bool | None:
        answer: bool | None = self._library.eof_received()
        return answer

    def pause_writing(self) -> None:
        self._library.pause_writing()

    def resume_writing(self) -> None:
        self._library.resume_writing()


def _transport(client: Client) -> Any:
    writer = writer_of(client)
    assert writer is not None, "a client that is connected by TCP or TLS has one"
    return writer.transport


def writer_of(client: Client) -> asyncio.StreamWriter | None:
    """The library's own end of the socket; None if it has none."""
    return getattr(client._transport, "_io_writer", None)  # noqa: SLF001


def header_block(headers: dict[str, str]) -> bytes:
    """The headers as they are sent; neither names nor values may hold line ends."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def status_of(headers: bytes) -> str:
    """The three digits of a message that the server sends of itself; empty for any other message."""
    return headers[9:12].decode() if headers.startswith(b"NATS/1.0 ") else ""


def headers_of(headers: bytes) -> dict[str, str]:
    """The headers by name; a status line's text is `Description`."""
    first, *lines = headers.decode(errors="replace").rstrip("\r\n").split(_CRLF.decode())
    found = {"Description": first[13:]} if first[13:] else {}
    for line in lines:
        name, _, value = line.partition(":")
        found[name] = value.strip()
    return found
