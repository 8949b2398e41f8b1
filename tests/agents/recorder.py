"""A recording proxy on loopback: the programs reach the deployment through it, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 32 * 1024 * 1024
"""A longer request is refused: no program of ours sends one."""
EXCHANGES_MAX = 100
"""A program that asks more often than that in one test asks in circles, and is answered no more."""
SECRET = ("authorization", "x-api-key")


@dataclass(slots=True)
class Exchange:
    """One request of a program and the answer that went back."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in small letters; secrets are left out."""
    raw: bytes
    started_s: float
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    """What went back, when it did."""
    ended_s: float | None = None
    hung_up: bool = False
    """The program closed the connection before the answer's end."""

    @property
    def body(self) -> Any:
        """The request's JSON; None if it has none."""
        return json.loads(self.raw) if self.raw else None

    @property
    def answer(self) -> bytes:
        """All that went back, as it did."""
        return b"".join(chunk for _, chunk in self.chunks)

    @property
    def status(self) -> int | None:
        """The answer's; None before it came."""
        line = self.answer.partition(b"\r\n")[0].split()
        return int(line[1]) if len(line) > 1 else None

    @property
    def answer_headers(self) -> dict[str, str]:
        """The answer's, names in small letters."""
        lines = self.answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    @property
    def text(self) -> str:
        """The answer's body, without its framing by chunks."""
        head, _, rest = self.answer.partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" not in head.lower():
            return rest.decode()
        whole = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size or b"0", 16)
            whole, rest = whole + rest[:length], rest[length + 2 :]
        return whole.decode()

    @property
    def events(self) -> list[dict[str, Any]]:
        """The data of a stream's events, in order; empty for an answer that is no stream."""
        lines = (line.removeprefix("data: ") for line in self.text.splitlines() if line.startswith("data: {"))
        return [json.loads(line) for line in lines]

    def as_fixture(self) -> dict[str, Any]:
        """What a file can hold of the request."""
        return {"method": self.method, "path": self.path, "headers": self.headers, "body": self.body}


class Recorder:
    """Passes requests to one server, and keeps what passed; a request to another host is refused and named."""

    def __init__(self, host: str, port: int) -> None:
        self.exchanges: list[Exchange] = []
        self.elsewhere: set[str] = set()
        """Hosts that a program wanted to reach beside the deployment."""
        self._target = host, port
        self._server: asyncio.Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Where the programs find the deployment."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def in_circles(self) -> bool:
        """Whether more was asked than any conversation takes."""
        return len(self.exchanges) > EXCHANGES_MAX

    def posts(self, path: str = "") -> list[Exchange]:
        """Requests for answers whose path ends so, in order."""
        return [
            exchange
            for exchange in self.exchanges
            if exchange.method == "POST" and exchange.path.partition("?")[0].endswith(path)
        ]

    async def start(self) -> None:
        """It listens on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """It listens no more; what still passed is cut."""
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            exchange = _opened(head)
            if exchange.method == "CONNECT" or exchange.path.startswith("http://"):
                self.elsewhere.add(exchange.path)
                writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            else:
                exchange.raw = await _body(reader, exchange.headers)
                self.exchanges.append(exchange)
                if not self.in_circles:
                    await self._pass(head, exchange, reader, writer)
        writer.close()

    async def _pass(
        self, head: bytes, exchange: Exchange, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """The answer goes back as it comes; a program that hangs up takes its request along."""
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        try:
            server_writer.write(_closing(head, len(exchange.raw)) + exchange.raw)
            gone = asyncio.ensure_future(reader.read(1))
            while True:
                coming = asyncio.ensure_future(server_reader.read(1 << 16))
                await asyncio.wait((gone, coming), return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    exchange.hung_up = True
                    break
                if not (chunk := coming.result()):
                    break
                exchange.chunks.append((_now_s(), chunk))
                writer.write(chunk)
                await writer.drain()
            gone.cancel()
        except ConnectionError:
            exchange.hung_up = True
        finally:
            exchange.ended_s = _now_s()
            server_writer.transport.abort()


@asynccontextmanager
async def recording(host: str, port: int) -> AsyncIterator[Recorder]:
    """A recorder until the end of the block."""
    recorder = Recorder(host, port)
    await recorder.start()
    try:
        yield recorder
    finally:
        await recorder.stop()


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _opened(head: bytes) -> Exchange:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ", 2)
    pairs = (line.partition(":")[::2] for line in lines)
    headers = {name.lower(): value.strip() for name, value in pairs}
    kept = {name: value for name, value in headers.items() if name not in SECRET}
    return Exchange(method, path, kept, b"", _now_s())


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", ""):
        whole = b""
        while size := int(await reader.readline(), 16):
            assert len(whole) + size <= BODY_BYTES_MAX, "a request is too long"
            whole += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        return whole
    length = int(headers.get("content-length", 0))
    assert length <= BODY_BYTES_MAX, "a request is too long"
    return await reader.readexactly(length)


def _closing(head: bytes, length: int) -> bytes:
    """The same head for a connection of its own and a body of known length."""
    first, *lines = head.rstrip(b"\r\n").split(b"\r\n")
    own = (b"connection", b"content-length", b"transfer-encoding", b"expect", b"proxy-connection")
    kept = [line for line in lines if line.partition(b":")[0].lower() not in own]
    return b"\r\n".join([first, *kept, b"connection: close", b"content-length: %d" % length]) + b"\r\n\r\n"
