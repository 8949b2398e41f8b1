"""Frames as bytes: the length before each frame, encoding and decoding, and the bounds on a frame's size."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from actors.transport.frames import (
    PROTOCOL,
    ToReplica,
    ToWorker,
)
from core.errors import PeerError

HELLO_BYTES_MAX = 4096
"""Bound on the frames of a handshake: more is not kept of a peer that has not proved the key."""


FRAME_BYTES_MAX = 16 * 1024 * 1024
"""Of a frame to a worker: a prompt of some four million tokens."""


ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""Of a frame to a replica: tokenizers of large vocabularies have tens of MiB."""


_LENGTH = struct.Struct("<I")


_encoder = msgspec.msgpack.Encoder()


_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)


_to_replica: msgspec.msgpack.Decoder[ToReplica] = msgspec.msgpack.Decoder(ToReplica)


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The decoder's errors for bytes that cannot be read: broken, not UTF-8, nested without end."""


def encode_frame(frame: ToWorker | ToReplica) -> bytes:
    """The frame with its length before it."""
    body = _encoder.encode(frame)
    return _LENGTH.pack(len(body)) + body


def decode_to_worker(body: bytes | memoryview) -> ToWorker:
    """The frame. PeerError if it is none."""
    try:
        return _to_worker.decode(body)
    except _UNREADABLE as error:
        raise PeerError(f"not a frame of protocol {PROTOCOL}: {error}") from error


def decode_to_replica(body: bytes | memoryview) -> ToReplica:
    """The frame. PeerError if it is none."""
    try:
        return _to_replica.decode(body)
    except _UNREADABLE as error:
        raise PeerError(f"not a frame of protocol {PROTOCOL}: {error}") from error


class FrameSplitter:
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
