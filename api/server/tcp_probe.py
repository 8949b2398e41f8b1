"""TcpProbe: the kernel's numbers of a TCP connection, as Linux gives them (`struct tcp_info`); none elsewhere."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys

import msgspec

from core.clock import SystemClock

_AGE = struct.Struct("<52xI")
"""Up to `tcpi_last_data_recv`."""
_SENDING = struct.Struct("<24xI28xI84xI28xQ")
"""`tcpi_unacked`, `tcpi_last_ack_recv`, `tcpi_notsent_bytes`, `tcpi_rwnd_limited`."""
_TCP_INFO = getattr(socket, "TCP_INFO", 0) if sys.platform == "linux" else 0

_INET, _STREAM = int(socket.AF_INET), int(socket.SOCK_STREAM)
"""Also of sockets of other families: the kernel goes by the number of the file."""


class SendingState(msgspec.Struct, frozen=True):
    """The sending side of a connection."""

    unacked: int
    """Segments that the other side has not acknowledged."""
    ms_since_ack: int
    unsent_bytes: int
    """Bytes in the kernel that could not be sent yet."""
    stalled_us: int
    """The time so far for which bytes waited because the other side had no room: it did not read."""


class _BorrowedSocket(socket.SocketType):
    """A view of a connection that a transport owns: it is never closed here. uvloop's own view costs 12 us a call."""

    def __del__(self) -> None:
        self.detach()


class TcpProbe:
    """Asks the kernel about one connection, at 2 us a question. The owner calls `close` before the connection ends."""

    __slots__ = ("_socket", "ended_ns", "stalled_us")

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self.stalled_us = 0
        """`SendingState.stalled_us` at the end of the last answer."""
        self.ended_ns = 0
        """When the connection ended, by the monotonic clock; 0 until then."""
        found = transport.get_extra_info("socket") if _TCP_INFO else None
        self._socket = None if found is None else _BorrowedSocket(_INET, _STREAM, 0, found.fileno())

    def __repr__(self) -> str:
        return f"<TcpProbe {self.sending()}>"

    def close(self) -> None:
        """Nothing is asked any more."""
        self.ended_ns = self.ended_ns or SystemClock.monotonic_ns()
        if self._socket is not None:
            self._socket.detach()
            self._socket = None

    def ms_since_data(self) -> int:
        """The age of the last bytes that came, to a few milliseconds; 0 if that is not known."""
        raw = self._ask(_AGE)
        return 0 if raw is None else int(raw[0])

    def sending(self) -> SendingState | None:
        """The sending side; None if it is not known."""
        raw = self._ask(_SENDING)
        return None if raw is None else SendingState(*raw)

    def _ask(self, form: struct.Struct) -> tuple[int, ...] | None:
        if self._socket is None:
            return None
        try:
            return form.unpack(self._socket.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, form.size))
        except (OSError, struct.error):  # an earlier kernel, or another system that says it is Linux
            self.close()
            return None
