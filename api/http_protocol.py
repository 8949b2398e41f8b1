"""HTTP/1.1 with bounds: uvicorn's httptools protocol, which by itself takes headers of any length."""

from __future__ import annotations

import http
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.openai.errors import ApiError

HEAD_BYTES_MAX = 64 * 1024
"""Request line and headers; one read of the socket more may come in before it is noticed."""
DISCARD_BYTES_MAX = 64 * 1024 * 1024
"""Rest of a body that was refused: read and dropped up to this, so that the client gets to see the answer."""
LINGER_S = 5.0
"""How long the client may take to read why it was refused, before the connection is cut."""

_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


class BoundedHttp(HttpToolsProtocol):
    """Refuses what is no HTTP or too long a head, in OpenAI's shape, and hangs up on endless bodies."""

    _head_bytes = 0
    _in_head = False
    _in_body = False
    _refused = False
    _discarded_bytes = 0

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._discard(len(data))
            return
        super().data_received(data if self._in_body else _without_upgrade(data))
        if self._in_head and not self._refused:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(431, f"the request line and headers are longer than {HEAD_BYTES_MAX} bytes")

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes, self._discarded_bytes = True, 0, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body = False, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self.cycle.response_complete:
            self._discard(len(body))

    def _discard(self, size: int) -> None:
        self._discarded_bytes += size
        if self._discarded_bytes > DISCARD_BYTES_MAX:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - ours says it better
        """The answer to bytes that are no HTTP; in the middle of another answer there is only hanging up."""
        self._refuse(400, "this is not a valid HTTP/1.1 request")

    def _refuse(self, status: int, message: str) -> None:
        self._refused = True
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete:
            self.transport.close()
            return
        self.transport.write(_answer(ApiError(status, message)))
        # closing with bytes unread would reset the connection, and the client would never read the answer
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)


def _without_upgrade(data: bytes) -> bytes:
    """The bytes with any Upgrade header renamed: a server may ignore it, but the parser then drops the body.

    Java's own client asks for HTTP/2 in this way with every POST.
    """
    end = data.find(b"\r\n\r\n")
    found = _UPGRADE.search(data, 0, len(data) if end < 0 else end)
    return data if found is None else data[: found.start()] + b"\r\nx-upgrade:" + data[found.end() :]


def _answer(error: ApiError) -> bytes:
    body = error.body()
    head = (
        f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
