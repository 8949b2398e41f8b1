"""Frames between a replica and a worker, over one TCP connection for all requests of both.

1. A frame is a little-endian uint32 length, then one msgpack map with its `type`; the length has a bound.
2. The replica's first frame is `Hello`; a worker says nothing and reads nothing else before it. It answers
   `Welcome`, or `Refusal` with both sides named, and hangs up.
3. `Generate` opens a stream under a number that the replica never used before on this connection (a client may send
   one request id again while tokens of the first are still on their way). `Tokens` follow until one has `finish`, or
   `Failed` ends it. `Cancel` ends it from the other side; what still comes for that number is for nobody.
   Where an engine's step gave several streams a token each and nothing else, one `StepTokens` has them all, if the
   replica said in `Hello` that it reads those: an older one gets `Tokens`.
4. Tokens that wait for a slow connection are merged, so a stream never holds more than its own answer. While what is
   written to a connection waits, nothing is read from it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from actors.frame import Frame
from actors.prefilling.frames import Answered, Broke, Claim, Confirm, Introduce, Offer, Prompt, Release, StillHeld
from core.errors import PeerError
from core.generation import NO_HINT, GenerateRequest, Hint, Output

PROTOCOL = 1
HELLO_BYTES_MAX = 4096
"""Of the first frame: more is not kept of somebody who has not said the key."""
FRAME_BYTES_MAX = 16 * 1024 * 1024
"""Of a frame to a worker: a prompt of some four million tokens."""
ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""Of a frame to a replica: tokenizers of large vocabularies have tens of MiB."""
_LENGTH = struct.Struct("<I")


class Hello(Frame, frozen=True, tag="Hello"):
    """The replica's first frame."""

    protocol: int
    key: str
    """The deployment's door key."""
    namespace: str
    replica: str
    steps: bool = False
    """Whether it reads `StepTokens`."""


class Generate(Frame, frozen=True, tag="Generate"):
    """Asks for tokens."""

    stream: int
    model: str
    request: GenerateRequest
    hint: Hint = NO_HINT


class Cancel(Frame, frozen=True, tag="Cancel"):
    """Nobody waits for this stream any more."""

    stream: int


class Ping(Frame, frozen=True, tag="Ping"):
    """Are you there?"""

    n: int


class Restate(Frame, frozen=True, tag="Restate"):
    """Your chain has a gap here: say your whole cache again."""


class AskFiles(Frame, frozen=True, tag="AskFiles"):
    """What does a front end need to speak for your model?"""


class AskCache(Frame, frozen=True, tag="AskCache"):
    """Which blocks do you hold on the device?"""


class Welcome(Frame, frozen=True, tag="Welcome"):
    """The worker takes requests from here."""

    worker: str
    name: str
    model: str


class Refusal(Frame, frozen=True, tag="Refusal"):
    """The worker will not talk; it hangs up."""

    reason: str


class Tokens(Frame, frozen=True, tag="Tokens"):
    """New tokens of one stream."""

    stream: int
    output: Output


class StepTokens(Frame, frozen=True, tag="StepTokens"):
    """One new token of each of several streams, with nothing else to say of it: what most steps of an engine are."""

    tokens: dict[int, int]
    """By stream."""


class Failed(Frame, frozen=True, tag="Failed"):
    """One stream ended badly; `fault` is `caller` or `worker`, whose it is, or nobody's: `leaving` if the worker ends
    in good order, `busy` if it declined what was to be sent only if it is free (`text` is how many tokens of other
    replicas' prompts it computes)."""

    stream: int
    fault: str
    text: str


class Pong(Frame, frozen=True, tag="Pong"):
    """Yes."""

    n: int


class Files(Frame, frozen=True, tag="Files"):
    """Tokenizer files by name."""

    files: dict[str, bytes]


class Cache(Frame, frozen=True, tag="Cache"):
    """The worker's mirror of its engine's cache."""

    hashes: bytes
    """uint64, sorted."""


ToWorker = (
    Hello | Generate | Cancel | Ping | Restate | AskFiles | AskCache | Introduce | Claim | Answered | Broke | StillHeld
)
ToReplica = Welcome | Refusal | Tokens | StepTokens | Failed | Pong | Files | Cache | Prompt | Offer | Confirm | Release

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_to_replica: msgspec.msgpack.Decoder[ToReplica] = msgspec.msgpack.Decoder(ToReplica)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the decoder raises for bytes that cannot be read: broken, not UTF-8, nested without end."""


def encode(frame: ToWorker | ToReplica) -> bytes:
    """The frame with its length before it."""
    body = _encoder.encode(frame)
    return _LENGTH.pack(len(body)) + body


def read_by_worker(body: bytes | memoryview) -> ToWorker:
    """The frame. PeerError if it is none."""
    try:
        return _to_worker.decode(body)
    except _UNREADABLE as error:
        raise PeerError(f"not a frame of protocol {PROTOCOL}: {error}") from error


def read_by_replica(body: bytes | memoryview) -> ToReplica:
    """The frame. PeerError if it is none."""
    try:
        return _to_replica.decode(body)
    except _UNREADABLE as error:
        raise PeerError(f"not a frame of protocol {PROTOCOL}: {error}") from error


class Splitter:
    """Cuts a byte stream into frames' bodies. PeerError for one above the bound as soon as its length is read; then,
    or if a caller stops early, it is of no more use."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """The bodies that are whole now, not copied: each is to be read before the next is asked for."""
        whole: bytes | bytearray = data
        if self._buffer:  # a frame that comes in many pieces is put together in place
            self._buffer += data
            whole = self._buffer
        start = 0
        with memoryview(whole) as view:
            while len(whole) - start >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(view, start)
                if size > self.bytes_max:
                    raise PeerError(f"a frame of {size} bytes; at most {self.bytes_max} are taken")
                end = start + _LENGTH.size + size
                if len(whole) < end:
                    break
                with view[start + _LENGTH.size : end] as body:
                    yield body
                start = end
        if whole is self._buffer:
            del self._buffer[:start]
        else:
            self._buffer += data[start:]
