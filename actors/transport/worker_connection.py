"""WorkerConnection: a replica's side of one connection to a worker, and the streams of outputs that come over it."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, assert_never, cast

import msgspec

from actors.prompt_cache.part_digests import NamedParts
from actors.transport.frames import (
    AdapterChanged,
    AskPrompt,
    BlocksErased,
    Cache,
    Cancel,
    Confirm,
    Failed,
    Files,
    Generate,
    JobOffer,
    JobPrompt,
    Ping,
    Pong,
    PoolContent,
    PromptParts,
    Refusal,
    Release,
    StepTokens,
    Tokens,
    ToPrefill,
    ToReplica,
    ToWorker,
    Welcome,
    WorkerHello,
)
from actors.transport.framing import (
    ANSWER_BYTES_MAX,
    FRAME_BYTES_MAX,
    HELLO_BYTES_MAX,
    FrameSplitter,
    decode_to_replica,
    encode_frame,
)
from actors.transport.link_tls import peer_digest, tls_fault
from core.errors import CallerError, PeerError, Unavailable
from core.generation import GenerateRequest, Hint, Output

UNSENT_BYTES_MAX = 64 << 20
"""Bound on unsent bytes for a worker that does not read. Beyond it the connection is given up, and other workers
continue its requests. Four of the longest frames; a worker that reads has next to none."""

SENT_PARTS_MAX = 16_384
"""Parts of prompts that a connection remembers as sent: as many as a worker keeps by its default bound. At 120 bytes
each, 2 MB."""

_logger = logging.getLogger(__name__)


class WorkerDisconnected(Unavailable):
    """The connection to the worker broke; whether tokens were made after the last one that came is not known."""


class WorkerLeaving(WorkerDisconnected):
    """The worker ends in good order: what it had, or would not take, is for another one."""


class WorkerDeclined(Unavailable):
    """The worker declined: it computes prompts of other replicas, with which the request does not fit into one pass; or
    it cannot load the request's adapter."""

    @property
    def tokens(self) -> int:
        """The prompt tokens of other replicas that the worker computes; 0 if it gave no number."""
        text = str(self)
        return int(text) if text.isdecimal() else 0

    @property
    def detail(self) -> str:
        """For the record of the attempt."""
        return f"computes {self.tokens} tokens for other replicas" if self.tokens else str(self)


class OutputReceiver(Protocol):
    """Receives what comes of one request that was sent to a worker: every output in the turn of the loop in which it
    comes, up to the one with `finish`, or to a failure."""

    def put(self, output: Output) -> None:
        """More of the answer came. Must not raise."""

    def fail(self, error: Exception) -> None:
        """Nothing more comes: WorkerDisconnected, WorkerLeaving or WorkerDeclined of the worker, CallerError if its
        engine cannot take the request. Must not raise."""


class _SentParts:
    """Digests of the parts that were sent to a worker, which it should keep; the least recently used ones leave."""

    def __init__(self) -> None:
        self._sent: OrderedDict[bytes, None] = OrderedDict()

    def known(self, digests: Sequence[bytes]) -> int:
        """Number of leading parts that were sent."""
        return next((count for count in range(len(digests), 0, -1) if digests[count - 1] in self._sent), 0)

    def add(self, digests: Sequence[bytes]) -> None:
        for digest in reversed(digests):  # the first part is used last, as the worker has it
            self._sent[digest] = None
            self._sent.move_to_end(digest)
        while len(self._sent) > SENT_PARTS_MAX:
            self._sent.popitem(last=False)

    def forget(self, digests: Sequence[bytes]) -> None:
        for digest in digests:
            self._sent.pop(digest, None)


class _Named(NamedTuple):
    """A request that was sent by the parts of its prompt, and of which nothing came yet."""

    generate: Generate
    """With the whole prompt."""
    parts: NamedParts
    known: int
    """Leading parts that were left out."""


class WorkerConnection(asyncio.Protocol):
    """One connection, from its start to its end, with its streams and questions. `on_frame` is called with frames for a
    prefill worker, `on_end` at the end."""

    def __init__(
        self, on_frame: Callable[[ToPrefill], None] | None = None, on_end: Callable[[], None] = lambda: None
    ) -> None:
        self.streams: dict[int, OutputReceiver] = {}
        self.loop = asyncio.get_running_loop()
        """Kept, because `get_running_loop` makes a system call."""
        self.closed = asyncio.Event()
        """Set when nothing comes any more."""
        self.refusal = ""
        """Why the worker will not talk to us."""
        self.received = True
        """Something came since `ReconnectingClient.silence` was called last."""
        self.silence = 0
        """The number of pings since then."""
        self.keeps_prompts = False
        """The worker keeps the parts of prompts that it was sent, as its welcome says; so are the next two."""
        self.changes_adapters = False
        self.erases_blocks = False
        self._sent_parts = _SentParts()
        self._named: dict[int, _Named] = {}
        """By stream: kept until the worker has the whole prompt for certain."""
        self._numbers = itertools.count()
        self._unsent: list[bytes] | None = None
        """Frames that leave at the end of this turn of the loop; None until one left in it."""
        self._splitter = FrameSplitter(HELLO_BYTES_MAX)
        self._handle: Callable[[ToReplica], None] = self._greet
        """Handles the next frame: one of the handshake, until the worker has proved itself."""
        self._transport: asyncio.Transport | None = None
        self._asked: list[tuple[type[ToReplica], asyncio.Future[ToReplica]]] = []
        """Questions without an answer yet, those given up by their callers included: their answers come first."""
        self._on_frame = on_frame
        self._on_end = on_end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # a cast: uvloop's transports are no subclass
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    def pause_writing(self) -> None:
        """More waits than may."""
        _logger.error("a worker does not read: more than %d bytes wait for it", UNSENT_BYTES_MAX)
        self.refusal = self.refusal or f"the worker does not read: more than {UNSENT_BYTES_MAX} bytes wait for it"
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        fault = "" if exc is None else tls_fault(exc)
        self.refusal = self.refusal or fault
        self._end(f"the connection broke: {exc or 'closed by the worker'}")

    @property
    def is_made(self) -> bool:
        """True once TCP and TLS are connected."""
        return self._transport is not None

    @property
    def certificate(self) -> bytes:
        """SHA-256 of the worker's certificate; empty without TLS."""
        return b"" if self._transport is None else peer_digest(self._transport.get_extra_info("ssl_object"))

    def trust(self) -> None:
        """The worker has proved itself, or the handshake is of the version before: frames of all kinds are read."""
        self._splitter.bytes_max = ANSWER_BYTES_MAX
        self._handle = self._frame

    def close(self) -> None:
        """The connection is gone at once: a worker that does not read would hold it open for ever."""
        if self._transport is not None:
            self._transport.abort()
        self._end("the connection was given up")

    def _end(self, why: str) -> None:
        """All that wait for the connection are woken, once, with the reason."""
        if self.closed.is_set():
            return
        self.closed.set()
        why = self.refusal or why
        self._named.clear()
        streams, self.streams = self.streams, {}
        for receiver in streams.values():
            receiver.fail(WorkerDisconnected(why))
        asked, self._asked = self._asked, []
        for _, answer in asked:
            if not answer.done():
                answer.set_exception(WorkerDisconnected(why))
        self._on_end()

    def open(
        self,
        receiver: OutputReceiver,
        model: str,
        request: GenerateRequest,
        hint: Hint,
        parts: NamedParts | None = None,
    ) -> int:
        """The request is on its way; returns the number of its stream. Of the parts of its prompt, if they are given,
        those that were sent before are left out. CallerError if it is too long."""
        number = next(self._numbers)
        generate = Generate(stream=number, model=model, request=request, hint=hint)
        if parts is not None and parts.digests and self.keeps_prompts:
            known = self._sent_parts.known(parts.digests)
            frame = _encoded(_by_parts(generate, parts, known))
            self._sent_parts.add(parts.digests)
            self._named[number] = _Named(generate, parts, known)
        else:
            frame = _encoded(generate)
        self.streams[number] = receiver  # before it is sent: the connection may end in that
        self.send(frame)
        return number

    def _send_whole(self, number: int) -> None:
        """The worker lacks parts of this stream's prompt: it gets the whole, unless the stream is over."""
        named = self._named.get(number)
        if named is None:
            return
        self._sent_parts.forget(named.parts.digests)
        try:
            frame = _encoded(_by_parts(named.generate, named.parts, 0))
        except CallerError as error:
            del self._named[number]
            self.streams.pop(number).fail(error)
            return
        self._sent_parts.add(named.parts.digests)
        self.send(frame)

    def cancel(self, number: int) -> None:
        """Nothing more comes of the stream; the worker stops within a step if it had not finished."""
        self._named.pop(number, None)
        if self.streams.pop(number, None) is not None:
            self.send(encode_frame(Cancel(stream=number)))

    def send(self, frame: bytes) -> None:
        """The frame is on its way, unless the connection is gone: the first one in a turn of the loop at once, the rest
        together at its end. Each write wakes the worker, and costs as much as to choose it."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._unsent is not None:
            self._unsent.append(frame)
            return
        self._unsent = []
        self._transport.write(frame)
        self.loop.call_soon(self._send_rest)

    def _send_rest(self) -> None:
        rest, self._unsent = self._unsent, None
        if rest:
            self.send(b"".join(rest))

    async def ask(self, frame: ToWorker, kind: type[ToReplica]) -> ToReplica:
        """The worker's answer, a frame of that kind. WorkerDisconnected if the connection ends before it."""
        if self.closed.is_set():
            raise WorkerDisconnected("the connection is closed")
        return await self._send_question(frame, kind)

    def ping(self, n: int) -> None:
        """The worker is asked to say something. Its answer is for no later question."""
        self._send_question(Ping(n=n), Pong).cancel()

    def _send_question(self, frame: ToWorker, kind: type[ToReplica]) -> asyncio.Future[ToReplica]:
        """Questions of one kind are answered in order: the question stays until its own answer came, also if its
        caller gave up before."""
        answer: asyncio.Future[ToReplica] = self.loop.create_future()
        self._asked.append((kind, answer))
        self.send(encode_frame(frame))
        return answer

    def data_received(self, data: bytes) -> None:
        self.received = True
        try:
            for body in self._splitter.feed(data):
                self._handle(decode_to_replica(body))
                if self.closed.is_set():
                    return
        except PeerError as error:
            _logger.error("a worker broke the protocol: %s", error)  # noqa: TRY400  # its text says it all
            self.close()

    def _greet(self, frame: ToReplica) -> None:
        if not isinstance(frame, WorkerHello | Refusal):
            raise PeerError("the worker has not proved itself")
        self._frame(frame)

    def _frame(self, frame: ToReplica) -> None:
        match frame:
            case StepTokens(tokens=tokens):
                self._step(tokens)
            case Tokens(stream=number, output=output):
                streams = self.streams
                self._named.pop(number, None)
                receiver = streams.get(number) if output.finish is None else streams.pop(number, None)
                if receiver is not None:
                    receiver.put(output)
            case AskPrompt(stream=number):
                self._send_whole(number)
            case Failed():
                self._on_failed(frame)
            case Refusal(reason=reason):
                self.refusal = reason
                self.close()
            case (
                WorkerHello()
                | Welcome()
                | Pong()
                | Files()
                | Cache()
                | AdapterChanged()
                | PoolContent()
                | BlocksErased()
            ):
                self._answer(frame)
            case JobPrompt() | JobOffer() | Confirm() | Release():
                if self._on_frame is None:
                    raise PeerError(f"{type(frame).__struct_config__.tag} is for prefill workers")
                self._on_frame(frame)
            case _:
                assert_never(frame)

    def _on_failed(self, frame: Failed) -> None:
        if (named := self._named.pop(frame.stream, None)) is not None:  # it may have been refused unread
            self._sent_parts.forget(named.parts.digests[named.known :])
        receiver = self.streams.pop(frame.stream, None)
        if receiver is not None:
            receiver.fail(_FAULTS.get(frame.fault, WorkerDisconnected)(frame.text))

    def _step(self, tokens: dict[int, int]) -> None:
        streams = self.streams
        for number, token in tokens.items():
            receiver = streams.get(number)
            if receiver is not None:
                receiver.put(Output(tokens=(token,)))

    def _answer(self, frame: ToReplica) -> None:
        for i, (kind, answer) in enumerate(self._asked):
            if isinstance(frame, kind):
                del self._asked[i]
                if not answer.done():
                    answer.set_result(frame)
                return


_FAULTS: dict[str, type[Exception]] = {"caller": CallerError, "leaving": WorkerLeaving, "busy": WorkerDeclined}
"""Any unknown fault counts as the worker's."""


def _encoded(generate: Generate) -> bytes:
    """The frame with its length. CallerError if it is too long."""
    frame = encode_frame(generate)
    if len(frame) > FRAME_BYTES_MAX:
        raise CallerError(f"the request takes {len(frame)} bytes; at most {FRAME_BYTES_MAX} can be sent to a worker")
    return frame


def _by_parts(generate: Generate, parts: NamedParts, known: int) -> Generate:
    """The same without the first `known` parts of its prompt, which it names instead."""
    request = generate.request
    if known:
        request = msgspec.structs.replace(request, tokens=request.tokens[known * parts.size :])
    names = PromptParts(parts.size, known, parts.before(known), parts.end)
    return Generate(stream=generate.stream, model=generate.model, request=request, hint=generate.hint, parts=names)
