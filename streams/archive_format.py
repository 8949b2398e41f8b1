"""The form of an archive: a stretch of a namespace's log in one file, which needs no server to be read.

1. The file is MAGIC, blocks, snapshots, contents, footer. A block holds messages of one stream, in order, as zstd over
   a msgpack list of rows; a snapshot is its content as the log has it, in zstd; the contents are JSON and say where
   each of them stands and what its bytes hash to; the footer says the same of the contents.
2. A checksum (BLAKE2b, 16 bytes, no key) tells damage. Who means harm is told by the chains of the messages
   themselves, to whoever has the deployment's key.
3. A payload stands here as it was sealed, byte for byte, so chains and digests can be proved again anywhere.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

import msgspec

from core.errors import Corrupt
from core.manifest import Manifest

ARCHIVE_VERSION = 1
"""Changed whenever a reader of the one before could not read this one."""
MAGIC = b"CTRLLOG\x01"
END = b"CTRLEND\x01"
FOOTER = struct.Struct("<QQ16s8s")
"""Offset, size and checksum of the contents, then END."""
CHECKSUM_BYTES = 16
BLOCK_BYTES = 512 * 1024
"""A block is closed once its payloads are this long."""
ZSTD_LEVEL = 3


class Row(NamedTuple):
    """One message in a block."""

    seq: int
    time_ms: int
    owner: str
    """Whose subject it stands on: the subject's last token."""
    payload: bytes


class Piece(msgspec.Struct, frozen=True):
    """Where some bytes stand in the file, and what they are."""

    offset: int
    size: int
    checksum: str


class Block(msgspec.Struct, frozen=True):
    """Messages of one stream."""

    stream: str
    first_seq: int
    last_seq: int
    first_ms: int
    last_ms: int
    messages: int
    piece: Piece


class Span(msgspec.Struct, frozen=True):
    """What an archive holds of one stream."""

    epoch: int
    first_seq: int
    """The first message that it would hold if the log had it; what lies before is in a snapshot, or gone."""
    last_seq: int
    """The last one; first_seq - 1 if there is none."""
    log_first_seq: int
    """The oldest that the log retained then."""


class Saved(msgspec.Struct, frozen=True):
    """A snapshot in the archive."""

    manifest: Manifest
    piece: Piece


class Head(msgspec.Struct, frozen=True):
    """The end of one source's chain in the archive."""

    n: int
    digest: str
    """Chain digest of that message, 32 hex digits."""


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive is and holds, as JSON that a person can read."""

    v: int = ARCHIVE_VERSION
    namespace: str
    program: str
    """Name and version of the program that wrote it."""
    made_ms: int
    from_ms: int
    """From which moment it was asked for; 0 for all that the log had. What lies before is there to fold from."""
    to_ms: int
    key_check: str
    """Tells whether a key is this deployment's, and nothing else of it; 32 hex digits."""
    redacted: bool = False
    """Names were removed and the chains sealed anew, with `chain_key`: they prove order, not origin."""
    chain_key: str = ""
    streams: dict[str, Span]
    blocks: list[Block]
    snapshots: list[Saved]
    """Oldest first."""
    heads: dict[str, dict[str, Head]]
    """Per stream and source."""

    def to_bytes(self) -> bytes:
        """The inverse of `parse`."""
        return msgspec.json.encode(self)

    @staticmethod
    def parse(value: bytes) -> Contents:
        """Corrupt if it is none, or of a version that this program does not read."""
        try:
            found = _decoder.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Corrupt(f"the archive's contents cannot be read: {error}") from error
        if found.v != ARCHIVE_VERSION:
            raise Corrupt(f"an archive of version {found.v}; this program reads {ARCHIVE_VERSION}")
        return found


def checksum(data: bytes) -> bytes:
    """What tells damage."""
    return hashlib.blake2b(data, digest_size=CHECKSUM_BYTES).digest()


def key_check(chain_key: bytes) -> str:
    """What tells one chain key from another, and gives nothing of it away."""
    return hashlib.blake2b(b"archive", key=chain_key, digest_size=CHECKSUM_BYTES).hexdigest()


_decoder: msgspec.json.Decoder[Contents] = msgspec.json.Decoder(Contents)
