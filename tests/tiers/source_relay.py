"""SourceRelay: a source of fetches behind a relay, which does something at an exact place of a fetch."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

PIECE_BYTES = 1 << 16
CONNECT_S = 1.0


class SourceRelay:
    """Listens from its construction on, and passes bytes on to the source until `close`."""

    def __init__(self, host: str, port: int) -> None:
        self._source = (host, port)
        self._plan: tuple[int, Callable[[], None]] | None = None
        self._plans = 0
        """Number of plans so far: each is for connections that come after it."""
        self._lock = threading.Lock()
        self._open = set[socket.socket]()
        self._socket = socket.create_server((host, 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __repr__(self) -> str:
        return f"<SourceRelay to port {self._source[1]}, {len(self._open)} connections>"

    def plan(self, after_bytes: int, act: Callable[[], None]) -> None:
        """`act` is called once, when so many bytes of a new connection's source were passed on; with 0 before the
        connection to the source is made. Later bytes of the source are lost. Connections of before are closed."""
        self._drop()
        with self._lock:
            self._plan = after_bytes, act
            self._plans += 1

    def close(self) -> None:
        """Nothing is passed on any more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # `accept` in the other thread returns
        self._socket.close()
        self._drop()

    def _drop(self) -> None:
        with self._lock:
            channels, self._open = self._open, set()
        for channel in channels:
            with suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                reader, _ = self._socket.accept()
            except OSError:  # it was closed
                return
            plans = self._plans
            self._act(plans, 0)
            try:
                source = socket.create_connection(self._source, CONNECT_S)
            except OSError:
                reader.close()
                continue
            source.settimeout(None)
            with self._lock:
                self._open |= {reader, source}
            threading.Thread(target=self._relay, args=(reader, source, plans), daemon=True).start()

    def _relay(self, reader: socket.socket, source: socket.socket, plans: int) -> None:
        """Both are closed when either ends."""
        asking = threading.Thread(target=_pass, args=(reader, source, lambda _: False), daemon=True)
        asking.start()
        _pass(source, reader, partial(self._act, plans))
        asking.join()
        with self._lock:
            self._open -= {reader, source}
        reader.close()
        source.close()

    def _act(self, plans: int, passed: int) -> bool:
        """True if it struck now."""
        with self._lock:
            if (
                self._plan is None
                or plans != self._plans
                or (passed < self._plan[0] or (not passed) != (not self._plan[0]))
            ):
                return False
            (_, act), self._plan = self._plan, None
        act()
        return True


def _pass(from_end: socket.socket, to_end: socket.socket, on_passed: Callable[[int], bool]) -> None:
    """One direction, until either end is gone. `on_passed` is told how many bytes went; once it returns True, no more
    go: they are lost on the way."""
    passed, is_lost = 0, False
    with suppress(OSError):  # either end is gone, which the other one hears of below
        while piece := from_end.recv(PIECE_BYTES):
            if not is_lost:
                to_end.sendall(piece)
                passed += len(piece)
                is_lost = on_passed(passed)
    for each in (from_end, to_end):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
