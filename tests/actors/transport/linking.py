"""Both ends of a link over real TCP: a worker's port, one that answers as a test wants, and what is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from actors.transport.frames import PROTOCOL, Hello, ToWorker, Welcome
from actors.transport.framing import FRAME_BYTES_MAX, FrameSplitter, decode_to_worker, encode_frame
from actors.transport.reconnecting_client import ReconnectingClient
from actors.transport.worker_connection import TokenStream
from actors.transport.worker_server import WorkerServer
from core.generation import Output
from core.ids import WorkerId
from tests.actors.scripted_engine import WORKER, ScriptedHost
from tests.fixtures.eventually import eventually

KEY = "secret"
Said = Callable[[asyncio.StreamWriter, ToWorker], Awaitable[None] | None]


@asynccontextmanager
async def linked(address: str, key: str = KEY) -> AsyncIterator[tuple[ReconnectingClient, list[bool]]]:
    """A link that keeps trying, and its changes."""
    changes: list[bool] = []
    hello = Hello(protocol=PROTOCOL, key=key, namespace="test", replica="r")
    link = ReconnectingClient(WorkerId(WORKER), address, lambda: hello, lambda it: changes.append(it.up))
    link.start()
    try:
        yield link, changes
    finally:
        await link.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def port(host: ScriptedHost, at: int = 0) -> AsyncIterator[str]:
    """A worker's port; its address."""
    it = WorkerServer(host, "test", KEY)
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
    """Politeness alone."""
    if isinstance(frame, Hello):
        writer.write(encode_frame(Welcome(worker=WORKER, name="w", model="sim")))


async def up(link: ReconnectingClient) -> None:
    await eventually(lambda: link.up, "the link is up")


async def rest(stream: TokenStream) -> list[int]:
    tokens: list[int] = []

    def take(output: Output) -> bool:
        tokens.extend(output.tokens)
        return True

    await stream.run(take)
    return tokens
