"""Port: a worker's TCP side. Takes requests from replicas and streams tokens back, a slow reader at its own pace."""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import Protocol, assert_never, cast

import msgspec

from actors.engines.engine import Engine
from actors.wire import (
    PROTOCOL,
    TO_WORKER,
    AskCache,
    AskFiles,
    Cache,
    Cancel,
    Failed,
    Files,
    Generate,
    Hello,
    Ping,
    Pong,
    Refusal,
    Restate,
    Splitter,
    Tokens,
    ToReplica,
    ToWorker,
    Welcome,
    encode,
)
from core.errors import CallerError, ContrailError, PeerError
from core.generation import Output
from core.prompt import TOKEN_BYTES

REQUESTS_MAX = 4096
"""Streams open on one connection; one more is refused as overload."""
HELLO_TIMEOUT_S = 5.0
"""A connection that does not say who it is by then is closed."""
WRITE_HIGH_BYTES = 256 * 1024
"""Unsent bytes on a connection above which tokens wait and are merged."""

_logger = logging.getLogger(__name__)


class Host(Protocol):
    """What the port needs of its worker."""

    engine: Engine

    def welcome(self) -> Welcome:
        """Who the worker is now."""

    def restate(self) -> None:
        """The whole cache is appended to the log again."""

    def cached(self) -> bytes:
        """The mirror's blocks on the device, sorted."""

    def files(self) -> dict[str, bytes]:
        """Tokenizer files."""

    def served(self, prompt_tokens: int, cached_tokens: int) -> None:
        """The engine said how much of a prompt came from its cache."""


class Port:
    """Listens at one address until closed."""

    def __init__(self, host: Host, namespace: str, door_key: str) -> None:
        self.host = host
        self.namespace = namespace
        self.door_key = door_key
        self.draining = False
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()

    @property
    def streams(self) -> int:
        """Requests being served over this port."""
        return sum(len(connection.streams) for connection in self._connections)

    async def quiet(self) -> None:
        """Returns when no request is being served."""
        tasks = [task for connection in self._connections for task in connection.streams.values()]
        while tasks:
            await asyncio.wait(tasks)
            tasks = [task for connection in self._connections for task in connection.streams.values()]

    async def open(self, listen_host: str, listen_port: int) -> tuple[str, int]:
        """Returns the address that it listens at; OSError if it is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), listen_host, listen_port)
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def close(self) -> None:
        """No connection is left; what was being served is cancelled."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.hang_up()
        await asyncio.sleep(0)

    def joined(self, connection: Connection) -> None:
        """A connection is there."""
        self._connections.add(connection)

    def left(self, connection: Connection) -> None:
        """A connection is gone."""
        self._connections.discard(connection)


class Connection(asyncio.Protocol):
    """One replica."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._splitter = Splitter()
        self._transport: asyncio.Transport | None = None
        self._greeted = False
        self._writable = True
        self._flush_due = False
        self._unsent: dict[str, Output] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.streams: dict[str, asyncio.Task[None]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # a cast: uvloop's transports are no subclass
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self._timer = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self.hang_up)
        self._port.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self._port.left(self)
        if self._timer is not None:
            self._timer.cancel()
        for task in self.streams.values():
            task.cancel()

    def hang_up(self) -> None:
        """The connection is closed after what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._splitter.feed(data):
                self._frame(TO_WORKER.decode(body))
        except (msgspec.DecodeError, PeerError) as error:
            self._refuse(f"not a frame of protocol {PROTOCOL}: {error}")

    def _frame(self, frame: ToWorker) -> None:
        if isinstance(frame, Hello):
            self._greet(frame)
        elif not self._greeted:
            self._refuse("the first frame must be Hello")
        else:
            self._serve(frame)

    def _greet(self, hello: Hello) -> None:
        ours = self._port
        if not hmac.compare_digest(hello.key.encode(), ours.door_key.encode()):
            self._refuse("the deployment's key is another one here")
        elif (hello.protocol, hello.namespace) != (PROTOCOL, ours.namespace):
            theirs = f"protocol {hello.protocol}, namespace {hello.namespace!r}"
            self._refuse(f"you: {theirs}; here: protocol {PROTOCOL}, namespace {ours.namespace!r}")
        else:
            self._greeted = True
            if self._timer is not None:
                self._timer.cancel()
            self._send(ours.host.welcome())

    def _serve(self, frame: ToWorker) -> None:
        match frame:
            case Generate():
                self._open(frame)
            case Cancel():
                task = self.streams.pop(frame.id, None)
                self._unsent.pop(frame.id, None)
                if task is not None:
                    task.cancel()
            case Ping(n=n):
                self._send(Pong(n=n))
            case Restate():
                self._port.host.restate()
            case AskFiles():
                self._send(Files(files=self._port.host.files()))
            case AskCache():
                self._send(Cache(hashes=self._port.host.cached()))
            case Hello():
                self._refuse("greeted twice")
            case _:
                assert_never(frame)

    def _open(self, frame: Generate) -> None:
        request_id, model = frame.request.id, self._port.host.welcome().model
        if frame.model != model:
            self._fail(request_id, "worker", f"asked for model {frame.model!r}, here is {model!r}")
        elif self._port.draining:
            self._fail(request_id, "worker", "draining")
        elif len(self.streams) >= REQUESTS_MAX:
            self._fail(request_id, "worker", f"{REQUESTS_MAX} requests are open on this connection")
        elif request_id in self.streams:
            self._fail(request_id, "caller", f"request id {request_id!r} is in use")
        else:
            task = asyncio.create_task(self._stream(frame), name=f"request {request_id}")
            self.streams[request_id] = task
            task.add_done_callback(lambda done: self._ended(request_id, done))

    async def _stream(self, frame: Generate) -> None:
        request = frame.request
        try:
            async for output in self._port.host.engine.generate(request):
                if output.cached_tokens is not None:
                    self._port.host.served(len(request.tokens) // TOKEN_BYTES, output.cached_tokens)
                self._merge(request.id, output)
        except CallerError as error:
            self._fail(request.id, "caller", str(error))
        except ContrailError as error:
            self._fail(request.id, "worker", str(error))

    def _ended(self, id: str, task: asyncio.Task[None]) -> None:
        if self.streams.get(id) is task:
            del self.streams[id]
        if not task.cancelled() and task.exception() is not None:
            _logger.error("request failed by a defect", exc_info=task.exception(), extra={"request_id": id})
            self._fail(id, "worker", "internal error of the worker")

    def _merge(self, id: str, output: Output) -> None:
        waiting = self._unsent.get(id)
        self._unsent[id] = output if waiting is None else merged(waiting, output)
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if not self._writable or self._transport is None:
            return
        frames = [encode(Tokens(id=key, output=output)) for key, output in self._unsent.items()]
        self._unsent.clear()
        if frames:
            self._transport.write(b"".join(frames))

    def _fail(self, id: str, fault: str, text: str) -> None:
        self._flush()
        self._send(Failed(id=id, fault=fault, text=text))

    def _refuse(self, reason: str) -> None:
        self._send(Refusal(reason=reason))
        self.hang_up()

    def _send(self, frame: ToReplica) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(frame))


def merged(first: Output, second: Output) -> Output:
    """Both as one."""
    cached = first.cached_tokens if second.cached_tokens is None else second.cached_tokens
    return Output(tokens=first.tokens + second.tokens, finish=second.finish, cached_tokens=cached)
