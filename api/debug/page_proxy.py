"""Page proxy: forwards the questions of a front end's page to the process that answers them.

1. The first question starts the process. It ends with the front end that started it, or after some minutes without a
   question. A front end never folds for the page.
2. Front ends with one data folder share one process: its socket lies in the folder, and the process holds the lock
   beside it while it runs. So any front end can forward any question.
3. The socket listens before the process runs: the first question waits in its queue, and no front end has to poll.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import orjson
from starlette.types import Message, Receive, Scope, Send

from core.errors import Unavailable

PREFIX = "/debug/api"
"""Path below which all questions are asked."""
HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 64 * 1024
"""Bound of a question's body."""
PIECE_BYTES = 256 * 1024
PASSED = ("content-type",)
"""Headers that are forwarded, in both directions."""
ENDED = "the page's process ended before it answered: this front end's log says why"
FOLDER = "debug"
SOCKET = "socket"
LOCK = "lock"
BACKLOG = 64
UNDER_WAY_MAX = 32
"""Most questions that are forwarded at once."""
ANSWER_MAX_S = 60.0
PATH_BYTES_MAX = 100
"""Unix systems bound a socket's path at little more."""
RETRY_S = 0.1
RETRIES = 30
"""Retries while another front end starts the process."""
RESTART_S = 5.0
"""Shortest time between two starts, for a process that ends at once."""

_logger = logging.getLogger(__name__)


class PageProxy:
    """See the module's text; an ASGI application for everything below /debug/api/."""

    def __init__(self, connection_words: Sequence[str], data: Path | None) -> None:
        """`connection_words` name the deployment to a command of ours; `data` is its folder, if it is here."""
        self._words = tuple(connection_words)
        self._data = data
        self._folder: Path | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._started_s = -RESTART_S
        self._starting = asyncio.Lock()
        self._under_way = 0

    def __repr__(self) -> str:
        pid = self._process.pid if self._process is not None else None
        return f"<PageProxy to process {pid}, {self._under_way} under way>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._under_way >= UNDER_WAY_MAX:
            await _refuse(send, "too many questions at once: try again in a moment")
            return
        self._under_way += 1
        began = False

        async def send_on(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self._forward(scope, receive, send_on)
        except (Unavailable, BrokenAnswer, TimeoutError) as error:
            sentence = str(error) or f"no answer within {ANSWER_MAX_S:g} s"
            if not began:
                await _refuse(send, sentence)
            else:  # the server cuts the connection, so that the page sees that the answer is not whole
                _logger.warning("an answer to the page broke off: %s", sentence)
        finally:
            self._under_way -= 1

    async def close(self) -> None:
        """The process that this front end started has ended."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), 3)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._temporary is not None:
            self._temporary.cleanup()

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        if body is None:
            return
        async with asyncio.timeout(ANSWER_MAX_S):
            reader, writer = await self._connected()
            try:
                await relay(reader, writer, scope, body, send)
            finally:
                writer.close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the process, which is started if it does not run."""
        for _ in range(RETRIES):
            path = self._path()
            try:
                return await asyncio.open_unix_connection(str(path))
            except OSError:
                async with self._starting:
                    if not await self._start(path):
                        await asyncio.sleep(RETRY_S)
        raise Unavailable("the page's process is only just starting: try again in a moment")

    async def _start(self, path: Path) -> bool:
        """True if this front end started the process; False if another question or front end starts it."""
        if self._process is not None and self._process.returncode is None:
            return False  # another question has started it meanwhile
        now_s = asyncio.get_running_loop().time()
        if now_s - self._started_s < RESTART_S:
            raise Unavailable("the page's process has ended; its last words are in this front end's log")
        lock = _locked(path.parent / LOCK)
        if lock is None:
            return False
        self._started_s = now_s
        try:
            await self._spawn(path, lock)
        finally:
            os.close(lock)  # the process inherited it, and holds it while it runs
        return True

    async def _spawn(self, path: Path, lock: int) -> None:
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - a moment
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen(BACKLOG)
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "api.debug.page_process", "--listener", str(listener.fileno())),
                *("--folder", str(path.parent), *self._words),
                stdin=asyncio.subprocess.PIPE,  # it closes when this process ends, however it ends
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=(listener.fileno(), lock),
            )
        _logger.info("the page's process is started, pid %d", self._process.pid)

    def _path(self) -> Path:
        """The socket's path, in a folder that no other user may enter."""
        if self._folder is None:
            self._folder = self._shared_folder() or self._own_folder()
        return self._folder / SOCKET

    def _shared_folder(self) -> Path | None:
        """A folder in the deployment's data folder; None if that is not here, or not writable."""
        home = self._data / FOLDER if self._data is not None else None
        if home is None or len(os.fsencode(home / SOCKET)) > PATH_BYTES_MAX:
            return None
        try:
            home.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            return None
        return home if os.access(home, os.W_OK) else None

    def _own_folder(self) -> Path:
        self._temporary = tempfile.TemporaryDirectory(prefix="contrail-debug-", ignore_cleanup_errors=True)
        return Path(self._temporary.name)


def _locked(path: Path) -> int | None:
    """The descriptor of the locked file; None if another process holds the lock."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


async def _body(receive: Receive) -> bytes | None:
    """The body, cut one byte beyond BODY_BYTES_MAX; None if the client hung up first."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body") or len(body) > BODY_BYTES_MAX:
            return bytes(body[: BODY_BYTES_MAX + 1])


async def _refuse(send: Send, sentence: str) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": orjson.dumps({"error": sentence})})


class BrokenAnswer(Exception):
    """The connection ended before the whole answer, or its bytes are no HTTP; part of the answer may have been sent."""


class _Head(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]
    length: int


async def relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, scope: Scope, body: bytes, send: Send
) -> None:
    """The request of this scope is sent, and its answer forwarded as it comes. BrokenAnswer if it is not whole."""
    try:
        writer.write(_request(scope, body) + body)
        await writer.drain()
    except OSError as error:
        raise BrokenAnswer(ENDED) from error
    head = await _head(reader)
    await send({"type": "http.response.start", "status": head.status, "headers": head.headers})
    left = head.length if scope["method"] != "HEAD" else 0
    empty = not left
    while left:
        piece = await _piece(reader, min(left, PIECE_BYTES))
        left -= len(piece)
        await send({"type": "http.response.body", "body": piece, "more_body": left > 0})
    if empty:
        await send({"type": "http.response.body", "body": b""})


async def _piece(reader: asyncio.StreamReader, size: int) -> bytes:
    """The next bytes of a body that is not complete, at most `size`."""
    fault = "the page's process broke off in the middle of an answer"
    try:
        piece = await reader.read(size)
    except OSError as error:
        raise BrokenAnswer(fault) from error
    if not piece:
        raise BrokenAnswer(fault)
    return piece


def _request(scope: Scope, body: bytes) -> bytes:
    """The request's head. Path and query come from the parsed request: neither contains a line end."""
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    assert b"\r" not in target
    assert b"\n" not in target
    kept = b"".join(name + b": " + value + b"\r\n" for name, value in scope["headers"] if name.decode() in PASSED)
    method = scope["method"].encode()
    return b"%b %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n%b\r\n" % (
        method, target, len(body), kept,
    )  # fmt: skip


async def _head(reader: asyncio.StreamReader) -> _Head:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as error:
        raise BrokenAnswer(ENDED) from error
    first, *lines = raw[:-4].split(b"\r\n")
    if len(raw) > HEAD_BYTES_MAX or not first.startswith(b"HTTP/1.1 "):
        raise BrokenAnswer("the page's process gave an answer that is none")
    pairs = [line.split(b":", 1) for line in lines if b":" in line]
    headers = {name.strip().lower(): value.strip() for name, value in pairs}
    kept = [(name, headers[name]) for name in (each.encode() for each in PASSED) if name in headers]
    return _Head(int(first.split(b" ", 2)[1]), kept, int(headers.get(b"content-length", b"0")))
