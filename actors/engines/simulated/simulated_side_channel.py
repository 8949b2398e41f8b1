"""The side channel between simulated engines: the content of one engine's blocks, read by another.

1. A frame is a little-endian uint32 length and one msgpack map; a connection carries one question and its answer.
2. A question and its answer carry proofs: keyed digests of their content and of the question's nonce. So only engines
   of the deployment read blocks and free them, and no other program can answer for an engine that is gone. The key is
   never sent.
3. The engine's id is checked, because another engine may have the port by now. Nothing else is: the reader gets the
   content of the blocks at that moment, as with memory that is read over a network card.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import msgspec

from actors.engines.engine import TransferFailed
from actors.transport.frames import Frame
from actors.transport.framing import FrameSplitter
from core.errors import CallerError, PeerError
from core.kv_transfer import KvAddress
from core.prompt import hashes_from_bytes, hashes_to_bytes

TIMEOUT_S = 5.0
"""For a question and its answer, with the connection."""
FRAME_BYTES_MAX = 16 * 1024 * 1024
"""Of a frame: two million blocks."""
NONCE_BYTES = 32
PROOF_BYTES = 32
_LENGTH = struct.Struct("<I")


class ReadBlocks(Frame, frozen=True, tag="ReadBlocks"):
    """A request for the contents of these blocks."""

    engine: str
    ids: tuple[int, ...]
    nonce: bytes = b""
    proof: bytes = b""


class FreeBlocks(Frame, frozen=True, tag="FreeBlocks"):
    """This request's blocks were fetched, or will not be."""

    engine: str
    request: str
    fetched: bool
    nonce: bytes = b""
    proof: bytes = b""


class BlockContents(Frame, frozen=True, tag="Contents"):
    """One uint64 per block."""

    contents: bytes
    proof: bytes = b""


class BlocksFreed(Frame, frozen=True, tag="Freed"):
    """They are not held for you any more."""

    proof: bytes = b""


class SideChannelRefusal(Frame, frozen=True, tag="Refused"):
    """Not from me."""

    reason: str


class EngineMemory(Protocol):
    """The engine's part that serves its side channel; it cannot refuse."""

    def contents(self, ids: Sequence[int]) -> list[int]:
        """The contents of these blocks now."""

    def free(self, request: str, *, fetched: bool) -> None:
        """This request's blocks are held no longer."""


class SimulatedSideChannel(Protocol):
    """An engine's way to others, and theirs to it."""

    async def open(self, engine_id: str, memory: EngineMemory) -> tuple[str, int]:
        """Others reach this engine at the address returned. CallerError if it cannot be had."""

    async def read(self, address: KvAddress, ids: tuple[int, ...]) -> list[int]:
        """The contents of that engine's blocks. TransferFailed if it cannot be asked."""

    async def free(self, address: KvAddress, request: str, *, fetched: bool) -> None:
        """That engine holds this request's blocks no longer for us. TransferFailed if it cannot be told."""

    def close(self) -> None:
        """No other engine reaches this one any more; a second call does nothing."""


class TcpSideChannel:
    """A side channel over TCP, on the event loop's network."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, key: bytes = b"") -> None:
        """Engines with the same key reach each other."""
        self._host = host
        self._port = port
        self._key = key
        self._server: asyncio.Server | None = None
        self._served: set[_ServerConnection] = set()

    def __repr__(self) -> str:
        return f"<TcpSideChannel at {self._host}:{self._port}{'' if self._server else ', closed'}>"

    async def open(self, engine_id: str, memory: EngineMemory) -> tuple[str, int]:
        """Others reach this engine at the address returned. CallerError if the port is taken."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _ServerConnection(engine_id, memory, self._key, self._served), self._host, self._port
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise CallerError(
                    f"engine_args: nothing can listen at side_channel_host {self._host}, port {self._port}: {error}"
                ) from error
            raise CallerError(
                f"engine_args: port {self._port} at {self._host} is taken: give side_channel_port another number, "
                "one per engine, or 0 for a free one"
            ) from error
        self._host, self._port = self._server.sockets[0].getsockname()[:2]
        return self._host, self._port

    async def read(self, address: KvAddress, ids: tuple[int, ...]) -> list[int]:
        """The contents of that engine's blocks. TransferFailed if it cannot be asked within TIMEOUT_S."""
        answer = await _ask(address, ReadBlocks(engine=address.engine_id, ids=ids, nonce=_nonce()), self._key)
        if not isinstance(answer, BlockContents) or len(answer.contents) != 8 * len(ids):
            raise TransferFailed(f"no contents of {len(ids)} blocks from {address.host}:{address.port}")
        return hashes_from_bytes(answer.contents)

    async def free(self, address: KvAddress, request: str, *, fetched: bool) -> None:
        """That engine holds the blocks no longer for us. TransferFailed if it cannot be told within TIMEOUT_S."""
        question = FreeBlocks(engine=address.engine_id, request=request, fetched=fetched, nonce=_nonce())
        await _ask(address, question, self._key)

    def close(self) -> None:
        """No other engine reaches this one any more, and answers under way break off."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for served in self._served:
            served.abort()


class _EngineConnection(asyncio.Protocol):
    """One end of a connection: whole frames come to `on_body`, and an error of the other side ends it."""

    def __init__(self) -> None:
        self._splitter = FrameSplitter(FRAME_BYTES_MAX)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # a cast: uvloop's transports are no subclass

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._splitter.feed(data):
                self.on_body(body)
        except (PeerError, msgspec.DecodeError, UnicodeDecodeError) as error:
            self.on_error(error)
            self.abort()

    def on_body(self, body: bytes | memoryview) -> None:
        raise NotImplementedError

    def on_error(self, error: Exception) -> None:
        """The other side does not keep to the protocol."""

    def send(self, frame: Frame) -> None:
        assert self._transport is not None
        body = _encoder.encode(frame)
        self._transport.write(_LENGTH.pack(len(body)) + body)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _ServerConnection(_EngineConnection):
    """A connection of another engine to this one."""

    def __init__(self, engine_id: str, memory: EngineMemory, key: bytes, served: set[_ServerConnection]) -> None:
        super().__init__()
        self._engine_id = engine_id
        self._memory = memory
        self._key = key
        self._served = served
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._served.add(self)
        self._timer = asyncio.get_running_loop().call_later(TIMEOUT_S, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self._served.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def on_body(self, body: bytes | memoryview) -> None:
        question = _questions.decode(body)
        if not hmac.compare_digest(question.proof, _proof(self._key, _ASK, question, question.nonce)):
            self.send(SideChannelRefusal(reason="the question does not prove to come from this deployment"))
            return
        if question.engine != self._engine_id:
            self.send(SideChannelRefusal(reason=f"this is engine {self._engine_id}, not {question.engine}"))
            return
        match question:
            case ReadBlocks(ids=ids):
                self._answer(BlockContents(contents=hashes_to_bytes(self._memory.contents(ids))), question.nonce)
            case FreeBlocks(request=request, fetched=fetched):
                self._memory.free(request, fetched=fetched)
                self._answer(BlocksFreed(), question.nonce)

    def _answer(self, answer: BlockContents | BlocksFreed, nonce: bytes) -> None:
        self.send(msgspec.structs.replace(answer, proof=_proof(self._key, _ANSWER, answer, nonce)))


class _ClientConnection(_EngineConnection):
    """One question of ours."""

    def __init__(
        self, question: Frame, answer: asyncio.Future[BlockContents | BlocksFreed | SideChannelRefusal]
    ) -> None:
        super().__init__()
        self._question = question
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.send(self._question)

    def connection_lost(self, exc: Exception | None) -> None:
        self.on_error(exc or ConnectionResetError("the connection broke"))

    def on_body(self, body: bytes | memoryview) -> None:
        answer = _answers.decode(body)
        if not self._answer.done():
            self._answer.set_result(answer)

    def on_error(self, error: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)


async def _ask(address: KvAddress, question: ReadBlocks | FreeBlocks, key: bytes) -> BlockContents | BlocksFreed:
    """The proved answer; TransferFailed without one."""
    nonce = question.nonce
    question = msgspec.structs.replace(question, proof=_proof(key, _ASK, question, nonce))
    where = f"the engine {address.engine_id} at {address.host}:{address.port}"
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[BlockContents | BlocksFreed | SideChannelRefusal] = loop.create_future()
    factory: Callable[[], _ClientConnection] = lambda: _ClientConnection(question, waiting)  # noqa: E731  # its type has to be said
    try:
        async with asyncio.timeout(TIMEOUT_S):
            transport, _ = await loop.create_connection(factory, address.host, address.port)
            try:
                answer = await waiting
            finally:
                transport.abort()
    except TimeoutError as error:
        raise TransferFailed(f"{where} did not answer within {TIMEOUT_S} s") from error
    except (OSError, PeerError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TransferFailed(f"{where} cannot be asked: {error}") from error
    finally:
        waiting.cancel()
    if isinstance(answer, SideChannelRefusal):
        raise TransferFailed(f"{where} refuses: {answer.reason}")
    if not hmac.compare_digest(answer.proof, _proof(key, _ANSWER, answer, nonce)):
        raise TransferFailed(f"{where} does not prove to be of this deployment")
    return answer


_ASK, _ANSWER = b"blocks asked", b"blocks answered"
"""Personalizations of the two sides' digests: 16 bytes at most."""


def _nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def _proof(key: bytes, side: bytes, frame: Frame, nonce: bytes) -> bytes:
    """The keyed digest of a frame without its proof, and of the nonce of its question."""
    unproved = _encoder.encode((nonce, msgspec.structs.replace(frame, proof=b"")))
    return hashlib.blake2b(unproved, key=key, person=side, digest_size=PROOF_BYTES).digest()


_encoder = msgspec.msgpack.Encoder()
_questions: msgspec.msgpack.Decoder[ReadBlocks | FreeBlocks] = msgspec.msgpack.Decoder(ReadBlocks | FreeBlocks)
_answers: msgspec.msgpack.Decoder[BlockContents | BlocksFreed | SideChannelRefusal] = msgspec.msgpack.Decoder(
    BlockContents | BlocksFreed | SideChannelRefusal
)
