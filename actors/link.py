"""Link: a replica's connection to one worker, kept up for as long as the worker is registered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import assert_never, cast

import msgspec

from actors.wire import (
    TO_REPLICA,
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
from core.errors import CallerError, PeerError, Unavailable
from core.generation import GenerateRequest, Output
from core.ids import WorkerId

CONNECT_TIMEOUT_S = 2.0
RECONNECT_S = (0.1, 0.2, 0.5, 1.0)
"""Pauses between tries to connect; the last one repeats."""
ASK_TIMEOUT_S = 10.0

_logger = logging.getLogger(__name__)


class WorkerGone(Unavailable):
    """The connection to the worker broke; whether tokens were made after the last one that came is not known."""


class Link:
    """One worker at one address."""

    def __init__(
        self,
        worker: WorkerId,
        address: str,
        hello: Callable[[], Hello],
        on_change: Callable[[Link], None],
    ) -> None:
        self.worker = worker
        self.address = address
        self.failures = 0
        """Tries to connect that failed since it was last up."""
        self.refusal = ""
        """Why the worker will not talk to us, in its words."""
        self._hello = hello
        self._on_change = on_change
        self._wire: _Wire | None = None
        self._welcomed = False
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Link {self.worker} at {self.address}, {'up' if self.up else self.refusal or 'down'}>"

    @property
    def up(self) -> bool:
        """Connected and welcomed; False from the moment that the connection is seen to be broken."""
        return self._welcomed and self._wire is not None and not self._wire.closed.is_set()

    def start(self) -> None:
        """It connects, and again whenever it breaks, until closed."""
        self._task = asyncio.create_task(self._keep(), name=f"link {self.worker}")

    async def close(self) -> None:
        """Streams that are open end with WorkerGone."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._wire is not None:
            self._wire.close()

    def open(self, model: str, request: GenerateRequest) -> TokenStream:
        """The request is on its way when this returns; without a connection the stream says so."""
        return TokenStream(self._wire if self.up else None, model, request)

    async def ping(self, timeout_s: float) -> bool:
        """Whether the worker answers within the time."""
        if not self.up:
            return False
        try:
            await asyncio.wait_for(self._ask(Ping(n=1), Pong), timeout_s)
        except (TimeoutError, PeerError):
            return False
        return True

    def restate(self) -> None:
        """The worker is asked to say its cache again."""
        self._ready().send(Restate())

    async def files(self) -> dict[str, bytes]:
        """The worker's tokenizer files."""
        frame = await asyncio.wait_for(self._ask(AskFiles(), Files), ASK_TIMEOUT_S)
        assert isinstance(frame, Files)
        return frame.files

    async def cached(self) -> bytes:
        """The worker's blocks on the device: uint64, sorted."""
        frame = await asyncio.wait_for(self._ask(AskCache(), Cache), ASK_TIMEOUT_S)
        assert isinstance(frame, Cache)
        return frame.hashes

    def _ready(self) -> _Wire:
        if self._wire is None or not self.up:
            raise WorkerGone(f"no connection to worker {self.worker} at {self.address}")
        return self._wire

    async def _ask(self, frame: ToWorker, kind: type[ToReplica]) -> ToReplica:
        return await self._ready().ask(frame, kind)

    async def _keep(self) -> None:
        while True:
            try:
                await self._connect()
                assert self._wire is not None
                await self._wire.closed.wait()
            except (OSError, TimeoutError, PeerError) as error:
                _logger.debug("worker %s at %s: %s", self.worker, self.address, error)
            self._set(up=False)
            await asyncio.sleep(RECONNECT_S[min(self.failures, len(RECONNECT_S) - 1)])
            self.failures += 1

    async def _connect(self) -> None:
        host, _, port = self.address.rpartition(":")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, self._wire = await loop.create_connection(_Wire, host, int(port))
            frame = await self._wire.ask(self._hello(), Welcome)
        assert isinstance(frame, Welcome)
        if frame.worker != self.worker:
            self._wire.close()
            raise PeerError(f"worker {frame.worker} answers there")
        self.failures = 0
        self._set(up=True)

    def _set(self, *, up: bool) -> None:
        if self._wire is not None and self._wire.refusal != self.refusal:
            self.refusal = self._wire.refusal
            if self.refusal:
                _logger.error("worker %s at %s refuses: %s", self.worker, self.address, self.refusal)
        if self._welcomed != up:
            self._welcomed = up
            self._on_change(self)


class TokenStream:
    """The answer to one request: an async iterator that ends after the Output with `finish`.

    WorkerGone if the connection breaks or the worker fails, CallerError if the engine cannot take the request.
    """

    def __init__(self, wire: _Wire | None, model: str, request: GenerateRequest) -> None:
        # bounded by the request's own max_tokens
        self._inbox: asyncio.Queue[Output | Exception] = asyncio.Queue()
        self._wire = wire
        self._id = request.id
        self._ended = False
        if wire is None:
            self._inbox.put_nowait(WorkerGone("no connection to the worker"))
        else:
            wire.streams[request.id] = self._inbox
            wire.send(Generate(model=model, request=request))

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> Output:
        if self._ended:
            raise StopAsyncIteration
        item = await self._inbox.get()
        if isinstance(item, Exception):
            self._end()
            raise item
        if item.finish is not None:
            self._end()
        return item

    def close(self) -> None:
        """The worker stops within a step if it had not finished."""
        if not self._ended:
            self._end()
            if self._wire is not None:
                self._wire.send(Cancel(id=self._id))

    def _end(self) -> None:
        self._ended = True
        if self._wire is not None and self._wire.streams.get(self._id) is self._inbox:
            del self._wire.streams[self._id]


class _Wire(asyncio.Protocol):
    """One connection, once."""

    def __init__(self) -> None:
        self.streams: dict[str, asyncio.Queue[Output | Exception]] = {}
        self.closed = asyncio.Event()
        self.refusal = ""
        self._splitter = Splitter()
        self._transport: asyncio.Transport | None = None
        self._asked: list[tuple[type[ToReplica], asyncio.Future[ToReplica]]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # a cast: uvloop's transports are no subclass
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        gone = WorkerGone(self.refusal or f"the connection broke: {exc or 'closed by the worker'}")
        self.closed.set()
        for inbox in self.streams.values():
            inbox.put_nowait(gone)
        for _, answer in self._asked:
            if not answer.done():
                answer.set_exception(gone)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def send(self, frame: ToWorker) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(frame))

    async def ask(self, frame: ToWorker, kind: type[ToReplica]) -> ToReplica:
        """The next frame of that kind; questions of one kind are answered in order."""
        if self.closed.is_set():
            raise WorkerGone("the connection is closed")
        answer: asyncio.Future[ToReplica] = asyncio.get_running_loop().create_future()
        entry = (kind, answer)
        self._asked.append(entry)
        self.send(frame)
        try:
            return await answer
        finally:
            if entry in self._asked:
                self._asked.remove(entry)

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._splitter.feed(data):
                self._frame(TO_REPLICA.decode(body))
        except (msgspec.DecodeError, PeerError) as error:
            _logger.error("a worker sent what is no frame: %s", error)  # noqa: TRY400  # its text says it all
            self.close()

    def _frame(self, frame: ToReplica) -> None:
        match frame:
            case Tokens(id=id, output=output):
                self._deliver(id, output)
            case Failed(id=id, fault=fault, text=text):
                self._deliver(id, CallerError(text) if fault == "caller" else WorkerGone(text))
            case Refusal(reason=reason):
                self.refusal = reason
                self.close()
            case Welcome() | Pong() | Files() | Cache():
                self._answer(frame)
            case _:
                assert_never(frame)

    def _deliver(self, id: str, item: Output | Exception) -> None:
        inbox = self.streams.get(id)
        if inbox is not None:
            inbox.put_nowait(item)

    def _answer(self, frame: ToReplica) -> None:
        for i, (kind, answer) in enumerate(self._asked):
            if isinstance(frame, kind):
                del self._asked[i]
                if not answer.done():
                    answer.set_result(frame)
                return
