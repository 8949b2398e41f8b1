"""WorkerServer: a worker's TCP side. It takes requests from replicas and streams tokens back; a slow reader gets them
merged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Protocol, assert_never, cast

import msgspec

from actors.prompt_cache.part_digests import PartDigests
from actors.prompt_cache.prompt_store import PROMPTS_BYTES_MAX, PromptStore
from actors.transport.frames import (
    AdapterChanged,
    AskCache,
    AskFiles,
    AskPool,
    AskPrompt,
    BlocksErased,
    Cache,
    Cancel,
    Claim,
    ClientHello,
    ClientProof,
    EraseBlocks,
    Failed,
    Files,
    FromPrefill,
    Generate,
    Introduce,
    JobCompleted,
    JobFailed,
    LegacyHello,
    LoadAdapter,
    Ping,
    Pong,
    PoolContent,
    Refusal,
    Restate,
    StillHeld,
    ToReplica,
    ToWorker,
    UnloadAdapter,
    Welcome,
)
from actors.transport.framing import FRAME_BYTES_MAX, HELLO_BYTES_MAX, FrameSplitter, decode_to_worker, encode_frame
from actors.transport.handshake import LinkSecurity, WorkerHandshake, legacy_fault
from actors.transport.output_buffer import OutputBuffer, SendBuffer
from core.errors import CallerError, ContrailError, Declined, PeerError
from core.generation import Output
from core.prompt import TOKEN_BYTES, scope_bytes
from projections.policy.binding_plan import is_one_pass

REQUESTS_MAX = 4096
"""Streams open on one connection; one more is refused as overload."""
HELLO_TIMEOUT_S = 5.0
"""A connection whose client has not proved itself by then is closed."""
UNPROVED_MAX = 256
"""Connections whose clients have not proved themselves yet; for one more, the oldest one is closed."""
CHANGES_MAX = 64
"""Changes of adapters and pools under way on one connection; one more breaks it."""
GATHERED_TOKENS_MAX = 32
"""Of an answer that is taken whole so many tokens leave together: what a worker that dies takes with it, at most."""
WRITE_HIGH_BYTES = 256 * 1024
"""Unsent bytes on a connection above which tokens wait and are merged, and nothing more is read from it."""
CLOSE_TIMEOUT_S = 1.0
"""Bound on the sending of the last bytes when the server closes."""

ChangeAnswer = AdapterChanged | PoolContent | BlocksErased

_logger = logging.getLogger(__name__)


class ServerHandler(Protocol):
    """The part of a worker that its server calls."""

    def welcome(self) -> Welcome:
        """The worker's present id, its name and its model."""

    def restate(self) -> None:
        """A replica asked for a restatement: the whole cache is appended to the log again."""

    def cached(self) -> bytes:
        """The mirror's blocks on the device, sorted."""

    def files(self) -> dict[str, bytes]:
        """Tokenizer files."""

    async def change_adapter(self, frame: LoadAdapter | UnloadAdapter) -> AdapterChanged:
        """The answer, once the change is made or refused; one at a time, in their order."""

    async def pool_content(self) -> PoolContent:
        """The blocks in the worker's pool, by tenant."""

    async def erase_blocks(self, frame: EraseBlocks) -> BlocksErased:
        """The answer, once some blocks are erased, or the reason why none is."""

    def served(self, prompt_tokens: int, cached_tokens: int) -> None:
        """The engine said how much of a prompt came from its cache."""

    def generate(self, frame: Generate) -> AsyncIterator[Output]:
        """Tokens as they come; can be closed, as generators can. Errors as of `Engine.generate`."""

    def on_frame(self, connection: ClientConnection, frame: FromPrefill) -> None:
        """A frame of a prefill worker came."""

    def on_disconnect(self, connection: ClientConnection) -> None:
        """A connection broke."""


class WorkerServer:
    """Listens at one address until closed."""

    def __init__(self, host: ServerHandler, link: LinkSecurity, *, prompts_bytes_max: int = PROMPTS_BYTES_MAX) -> None:
        """`prompts_bytes_max` bounds the memory for prompts that clients sent before."""
        self.host = host
        self.link = link
        self.prompts = PromptStore(PartDigests(link.key), prompts_bytes_max)
        self.address = ""
        """HOST:PORT at which the worker is registered: a client must have dialed it. The listening address unless the
        owner sets another."""
        self.draining = False
        self.prompts_named = 0
        """Prompts so far of which a client left out parts …"""
        self.prompts_asked = 0
        """… and of these, those that it was asked for whole."""
        self.outputs = 0
        """Outputs of the engine to all requests so far."""
        self._server: asyncio.Server | None = None
        self._connections: set[ClientConnection] = set()
        self._unproved: dict[ClientConnection, None] = {}
        """The oldest first."""
        self._changed = asyncio.Event()

    @property
    def streams(self) -> int:
        """Requests being served over this port."""
        return sum(len(connection.streams) for connection in self._connections)

    async def quiet(self) -> None:
        """Returns when no request is being served and every token was handed to the network."""
        while any(connection.busy for connection in self._connections):
            await self._change()

    async def open(self, listen_host: str, listen_port: int, *, reuse_port: bool = False) -> tuple[str, int]:
        """Returns the address that it listens at; OSError if it is taken. With `reuse_port` a socket of the same user
        that does not listen may keep the port (`api.server.sockets.reserve`)."""
        loop, tls = asyncio.get_running_loop(), self.link.tls
        self._server = await loop.create_server(
            self._accept,
            listen_host,
            listen_port,
            reuse_port=reuse_port or None,
            ssl=None if tls is None else tls.server,
            ssl_handshake_timeout=None if tls is None else HELLO_TIMEOUT_S,
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return host, port

    def _accept(self) -> ClientConnection:
        if self.link.tls is not None:
            self.link.tls.refresh()
        return ClientConnection(self)

    async def close(self) -> None:
        """No connection is left; what was being served is cancelled, what was written was sent if there was time."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
            connection.hang_up()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while self._connections:
                    await self._change()
        except TimeoutError:
            _logger.warning("%d replicas did not read to the end", len(self._connections))
        for connection in self._connections:
            connection.abort()

    def end_streams(self, fault: str, why: str) -> None:
        """Other workers go on with what is being served: each stream ends behind what it has by now, and says why."""
        for connection in self._connections:
            connection.end_streams(fault, why)

    def computes_for_others(self, than: ClientConnection) -> int:
        """The prompt tokens of other connections under way, as stated by their replicas. O(connections)."""
        return sum(sum(each.prefills.values()) for each in self._connections if each is not than and each.prefills)

    def joined(self, connection: ClientConnection) -> None:
        """A connection is there."""
        self._connections.add(connection)
        self._unproved[connection] = None
        if len(self._unproved) > UNPROVED_MAX:
            oldest = next(iter(self._unproved))
            del self._unproved[oldest]
            oldest.abort()

    def proved(self, connection: ClientConnection) -> None:
        """The client of the connection has proved itself."""
        self._unproved.pop(connection, None)

    def left(self, connection: ClientConnection) -> None:
        """A connection is gone."""
        self._connections.discard(connection)
        self._unproved.pop(connection, None)
        self.changed()

    def changed(self) -> None:
        """A connection has less to do than before."""
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class ClientConnection(asyncio.Protocol):
    """The connection of one replica or prefill worker."""

    def __init__(self, port: WorkerServer) -> None:
        self.streams: dict[int, asyncio.Task[None]] = {}
        self.prefills: dict[int, int] = {}
        """Streams without a token yet, with how many tokens their replica expects to be computed."""
        self._asked: set[int] = set()
        """Streams of which the client was asked for the whole prompt."""
        self._changes: set[asyncio.Task[ChangeAnswer]] = set()
        """Changes of adapters and pools under way; at most CHANGES_MAX."""
        self._held: dict[int, OutputBuffer] = {}
        """Tokens of each stream that are gathered before they are sent."""
        self._worker_server = port
        self._splitter = FrameSplitter(HELLO_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._handshake: WorkerHandshake | None = None
        self._on_frame: Callable[[ToWorker], None] = self._prove
        """Handles the next frame: one of the handshake, until the client has proved itself."""
        self._writable = True
        self._flush_due = False
        self._unsent = SendBuffer()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<ClientConnection {len(self.streams)} streams, {len(self._unsent)} with tokens waiting>"

    @property
    def busy(self) -> bool:
        """True if a stream is served, or bytes wait to be written."""
        return bool(self.streams or self._unsent)

    @property
    def _open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # a cast: uvloop's transports are no subclass
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self._timer = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self.hang_up)
        self._worker_server.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        if self._timer is not None:
            self._timer.cancel()
        self.cancel()
        self._worker_server.host.on_disconnect(self)
        self._worker_server.left(self)

    def cancel(self) -> None:
        """Nothing is served any more, and changes that are under way are given up."""
        for task in (*self.streams.values(), *self._changes):
            task.cancel()

    def end_streams(self, fault: str, why: str) -> None:
        """Nothing is served any more, and the replica hears why, behind the tokens that there are."""
        for stream, task in self.streams.items():
            task.cancel()
            self._send_held(stream)
            self._fail(stream, fault, why)

    def hang_up(self) -> None:
        """The connection is closed after what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """The connection is closed at once."""
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        self._writable = False
        if self._open and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._writable = True
        self._flush()
        if self._writable and self._open and self._transport is not None:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._splitter.feed(data):
                self._on_frame(decode_to_worker(body))
                if not self._open:
                    return
        except PeerError as error:
            self._refuse(str(error))

    def _prove(self, frame: ToWorker) -> None:
        match frame:
            case ClientHello() if self._handshake is None:
                ours, tls = self._worker_server, self._worker_server.link.tls
                certificate = b"" if tls is None else tls.digest
                worker = ours.host.welcome().worker
                self._handshake = WorkerHandshake(ours.link, frame, worker, ours.address, certificate)
                self.send(self._handshake.answer)
            case ClientProof() if self._handshake is not None:
                if self._handshake.is_proved(frame.proof):
                    self._admit(steps=self._handshake.steps)
                else:
                    address = self._worker_server.address
                    self._refuse(f"you dialed another address than {address}, or your key is another one")
            case LegacyHello():
                self._admit_legacy(frame)
            case _:
                self._refuse("the first frame must be ClientHello, the second ClientProof")

    def _admit_legacy(self, hello: LegacyHello) -> None:
        link = self._worker_server.link
        if fault := legacy_fault(link, hello):
            self._refuse(fault)
        elif link.legacy is not None:
            self._admit(steps=hello.steps)
            self._timer = asyncio.get_running_loop().call_later(link.legacy.remaining_s, self.hang_up)

    def _admit(self, *, steps: bool) -> None:
        self._worker_server.proved(self)
        self._on_frame = self._serve
        self._unsent.steps = steps
        self._splitter.bytes_max = FRAME_BYTES_MAX
        if self._timer is not None:
            self._timer.cancel()
        self.send(self._worker_server.host.welcome())

    def _serve(self, frame: ToWorker) -> None:
        match frame:
            case Generate():
                self._take(frame)
            case Cancel(stream=stream):
                self._cancel(stream)
            case Ping(n=n):
                self.send(Pong(n=n))
            case Restate():
                self._worker_server.host.restate()
            case AskFiles() | AskCache():
                self._answer(frame)
            case LoadAdapter() | UnloadAdapter() | AskPool() | EraseBlocks():
                self._change(frame)
            case Introduce() if self._handshake and not self._handshake.speaks_as(frame.worker, frame.proof):
                self._refuse(f"you did not prove to be {frame.worker}")
            case Introduce() | Claim() | JobCompleted() | JobFailed() | StillHeld():
                self._worker_server.host.on_frame(self, frame)
            case ClientHello() | ClientProof() | LegacyHello():
                self._refuse("greeted twice")
            case _:
                assert_never(frame)

    def _answer(self, question: AskFiles | AskCache) -> None:
        host = self._worker_server.host
        if isinstance(question, AskFiles):
            self.send(Files(files=host.files()))
        else:
            self.send(Cache(hashes=host.cached()))

    def _change(self, frame: LoadAdapter | UnloadAdapter | AskPool | EraseBlocks) -> None:
        """The answer is sent once it is there; after a defect one with a fault."""
        if len(self._changes) >= CHANGES_MAX:
            self._refuse(f"{CHANGES_MAX} changes are under way on this connection")
            return
        host = self._worker_server.host
        call: Coroutine[None, None, ChangeAnswer]
        kind: type[ChangeAnswer]
        match frame:
            case AskPool():
                call, kind = host.pool_content(), PoolContent
            case EraseBlocks():
                call, kind = host.erase_blocks(frame), BlocksErased
            case _:
                call, kind = host.change_adapter(frame), AdapterChanged
        task: asyncio.Task[ChangeAnswer] = asyncio.create_task(call, name=f"change by {type(frame).__name__}")
        self._changes.add(task)
        task.add_done_callback(lambda done: self._changed(done, kind))

    def _changed(self, task: asyncio.Task[ChangeAnswer], kind: type[ChangeAnswer]) -> None:
        self._changes.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            _logger.error("a change failed by a defect", exc_info=error)
            self.send(kind(fault="internal error of the worker"))
        else:
            self.send(task.result())

    def _take(self, frame: Generate) -> None:
        stream, model = frame.stream, self._worker_server.host.welcome().model
        was_asked = stream in self._asked
        self._asked.discard(stream)
        if frame.model != model:
            self._fail(stream, "worker", f"asked for model {frame.model!r}, here is {model!r}")
        elif self._worker_server.draining:
            self._fail(stream, "leaving", "draining")
        elif len(self.streams) + len(self._asked) >= REQUESTS_MAX:
            self._fail(stream, "worker", f"{REQUESTS_MAX} requests are open on this connection")
        elif stream in self.streams:
            self._refuse(f"stream {stream} is open already")
        elif frame.hint.if_free and (others := self._declines(frame.hint.prefill_tokens)):
            self._fail(stream, "busy", str(others))
        elif (whole := self._with_whole_prompt(frame, was_asked=was_asked)) is not None:
            frame = whole
            self.prefills[stream] = frame.hint.prefill_tokens
            task = asyncio.create_task(self._stream(frame), name=f"request {frame.request.id}")
            self.streams[stream] = task
            task.add_done_callback(lambda done: self._ended(frame, done))

    def _with_whole_prompt(self, frame: Generate, *, was_asked: bool) -> Generate | None:
        """The frame with all tokens of its prompt. None if they are not there: then the client is asked for them, once,
        or told what is wrong with their names."""
        parts, request, stream = frame.parts, frame.request, frame.stream
        if parts is None:
            return frame
        server, scope = self._worker_server, scope_bytes(request.adapter, request.cache_salt)
        server.prompts_named += parts.known > 0
        try:
            tokens = server.prompts.whole(request.tokens, parts.size, parts.known, parts.before, parts.end, scope)
        except PeerError as error:
            self._fail(stream, "worker", str(error))
            return None
        if tokens is not None:
            return msgspec.structs.replace(frame, request=msgspec.structs.replace(request, tokens=tokens), parts=None)
        if was_asked:
            self._refuse(f"stream {stream} was to have its whole prompt")
        else:
            self._asked.add(stream)
            server.prompts_asked += 1
            self.send(AskPrompt(stream=stream))
        return None

    def _declines(self, tokens: int) -> int:
        """The prompt tokens computed for other replicas, if `tokens` do not fit into one pass with them; else 0."""
        others = self._worker_server.computes_for_others(self)
        return others if others and not is_one_pass(others + tokens) else 0

    def _cancel(self, stream: int) -> None:
        self._unsent.drop(stream)
        self._asked.discard(stream)
        task = self.streams.get(stream)
        if task is not None:
            task.cancel()

    async def _stream(self, frame: Generate) -> None:
        request, held, first = frame.request, OutputBuffer(), True
        self._held[frame.stream] = held
        try:
            # by its contract the iterator can be closed
            generation = cast(AsyncGenerator[Output, None], self._worker_server.host.generate(frame))
            async with aclosing(generation) as outputs:
                async for output in outputs:
                    if first:
                        self.prefills.pop(frame.stream, None)
                    if output.cached_tokens is not None:
                        self._worker_server.host.served(len(request.tokens) // TOKEN_BYTES, output.cached_tokens)
                    self._worker_server.outputs += 1
                    if request.gather and not first:
                        held.add(output)
                        if not _is_due(held, output):
                            continue
                        output = held.take()  # noqa: PLW2901 - all that is held, with this one
                    self._gather(frame.stream, output)
                    first = False
        except ContrailError as error:
            self._send_held(frame.stream)
            self._fail(frame.stream, _fault_of(error), str(error))

    def _send_held(self, stream: int) -> None:
        """The gathered tokens of the stream are sent."""
        held = self._held.get(stream)
        if held:
            self._gather(stream, held.take())

    def _ended(self, frame: Generate, task: asyncio.Task[None]) -> None:
        del self.streams[frame.stream]
        self._held.pop(frame.stream, None)
        self.prefills.pop(frame.stream, None)
        if not task.cancelled() and task.exception() is not None:
            about = {"request_id": frame.request.id}
            _logger.error("request failed by a defect", exc_info=task.exception(), extra=about)
            self._fail(frame.stream, "worker", "internal error of the worker")
        self._worker_server.changed()

    def _gather(self, stream: int, output: Output) -> None:
        self._unsent.add(stream, output)
        self._flush_soon()

    def _fail(self, stream: int, fault: str, text: str) -> None:
        self._unsent.fail(Failed(stream=stream, fault=fault, text=text))
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Everything that comes in one turn of the loop is sent together."""
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if not self._writable or not self._open or self._transport is None:
            return
        if self._unsent:
            self._transport.write(self._unsent.take())
            self._worker_server.changed()

    def _refuse(self, reason: str) -> None:
        self.send(Refusal(reason=reason))
        self.hang_up()

    def send(self, frame: ToReplica) -> None:
        """The frame is on its way, unless the connection is gone."""
        if self._open and self._transport is not None:
            self._transport.write(encode_frame(frame))


def _fault_of(error: ContrailError) -> str:
    """See `Failed.fault`."""
    if isinstance(error, Declined):
        return "busy"
    return "caller" if isinstance(error, CallerError) else "worker"


def _is_due(held: OutputBuffer, output: Output) -> bool:
    """True if held outputs are sent with this one: at the end, or when enough are held."""
    return output.finish is not None or held.count >= GATHERED_TOKENS_MAX
