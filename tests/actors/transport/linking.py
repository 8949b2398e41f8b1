"""Both ends of a link over real TCP: a worker's port, one that answers as a test wants, and what is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from actors.prompt_cache.part_digests import NamedParts
from actors.transport.frames import ClientHello, ClientProof, ToWorker, Welcome
from actors.transport.framing import FRAME_BYTES_MAX, FrameSplitter, decode_to_worker, encode_frame
from actors.transport.handshake import LinkSecurity, WorkerHandshake
from actors.transport.output_buffer import OutputBuffer
from actors.transport.reconnecting_client import ReconnectingClient
from actors.transport.worker_connection import WorkerConnection, WorkerDisconnected
from actors.transport.worker_server import WorkerServer
from core.generation import NO_HINT, GenerateRequest, Hint, Output
from core.ids import WorkerId
from tests.actors.scripted_engine import WORKER, ScriptedHost
from tests.fixtures.eventually import eventually

KEY = b"secret"
LINK = LinkSecurity(key=KEY, namespace="test")
Said = Callable[[asyncio.StreamWriter, ToWorker], Awaitable[None] | None]


@asynccontextmanager
async def linked(address: str, link: LinkSecurity = LINK) -> AsyncIterator[tuple[ReconnectingClient, list[bool]]]:
    """A link that keeps trying, and its changes."""
    changes: list[bool] = []
    client = ReconnectingClient(WorkerId(WORKER), address, link, lambda: "r", lambda it: changes.append(it.up))
    client.start()
    try:
        yield client, changes
    finally:
        await client.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def port(host: ScriptedHost, at: int = 0, link: LinkSecurity = LINK) -> AsyncIterator[str]:
    """A worker's port; its address."""
    it = WorkerServer(host, link)
    name, number = await it.open("127.0.0.1", at)
    try:
        yield f"{name}:{number}"
    finally:
        await it.close()


class Impostor:
    """A worker that answers as a test wants."""

    def __init__(self, on_frame: Said) -> None:
        self.connections = 0
        self.open = 0
        self._on_frame = on_frame

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        splitter = FrameSplitter(FRAME_BYTES_MAX)
        try:
            while data := await reader.read(1 << 16):
                for body in splitter.feed(data):
                    done = self._on_frame(writer, decode_to_worker(body))
                    if done is not None:
                        await done
        except ConnectionError:
            pass  # how a connection ends is for the test to see
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def impostor(on_frame: Said) -> AsyncIterator[tuple[Impostor, str]]:
    """It listens; its address."""
    it = Impostor(on_frame)
    server = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    host, number = server.sockets[0].getsockname()
    try:
        yield it, f"{host}:{number}"
    finally:
        server.close()
        await eventually(lambda: not it.open, "its connections are gone")


def welcome(writer: asyncio.StreamWriter, frame: ToWorker) -> None:
    """The handshake of a worker that has the key, and nothing else."""
    if isinstance(frame, ClientHello):
        host, number = writer.get_extra_info("sockname")
        writer.write(encode_frame(WorkerHandshake(LINK, frame, WORKER, f"{host}:{number}", b"").answer))
    if isinstance(frame, ClientProof):
        writer.write(encode_frame(Welcome(worker=WORKER, name="w", model="sim")))


async def up(link: ReconnectingClient) -> None:
    await eventually(lambda: link.up, "the link is up")


class TokenReader:
    """Reads one stream of a connection in a task: what comes before `run` waits, merged."""

    def __init__(
        self,
        connection: WorkerConnection | None,
        asked: GenerateRequest,
        model: str = "sim",
        hint: Hint = NO_HINT,
        parts: NamedParts | None = None,
    ) -> None:
        self._buffer = OutputBuffer()
        self._error: Exception | None = None
        self._take: Callable[[Output], bool] | None = None
        self._over = asyncio.get_running_loop().create_future()
        self._connection = connection
        self._number = -1
        if connection is None:
            self.fail(WorkerDisconnected("no connection to the worker"))
        else:
            self._number = connection.open(self, model, asked, hint, parts)

    @staticmethod
    def of(link: ReconnectingClient, asked: GenerateRequest) -> TokenReader:
        """The request is sent over the link."""
        return TokenReader(link.connection, asked)

    async def run(self, take: Callable[[Output], bool]) -> None:
        """Every output was taken, or no more was wanted; raises what ended the stream, or what `take` raised."""
        self._take = take
        if self._buffer:
            self.put(self._buffer.take())
        await self._over
        if self._error is not None:
            raise self._error

    def put(self, output: Output) -> None:
        if self._take is None:
            self._buffer.add(output)
            return
        try:
            wants_more = self._take(output)
        except Exception as error:  # `run` raises it
            self._error, wants_more = error, False
        if output.finish is not None or not wants_more:
            self.close()
            self._settle()

    def fail(self, error: Exception) -> None:
        if not self._over.done():
            self._error = error
        self._settle()

    def close(self) -> None:
        """The worker is to stop."""
        if self._connection is not None:
            self._connection.cancel(self._number)

    def _settle(self) -> None:
        if not self._over.done():
            self._over.set_result(None)


async def rest(stream: TokenReader) -> list[int]:
    tokens: list[int] = []

    def take(output: Output) -> bool:
        tokens.extend(output.tokens)
        return True

    await stream.run(take)
    return tokens
