"""The form of an archive: a stretch of a namespace's log in one file, which needs no server to be read.

1. The file is MAGIC, blocks, snapshots, columns of prompts, contents, footer. A block holds messages of one stream, in
   order, as zstd over a msgpack list of rows; a snapshot is its content as the log has it, in zstd; the contents are
   JSON with the position and checksum of each of them; the footer has the same of the contents.
2. A checksum (BLAKE2b, 16 bytes, no key) finds damage. Forgery is found by the chains of the messages themselves,
   with the deployment's key.
3. A payload stands here as it was sealed, byte for byte, so chains and digests can be proved again anywhere.
4. An excerpt is an archive of one request: chosen messages, and a state cut to its prompt at each of its decisions. No
   chain proves what was left out and how the states were cut, so its writer seals the contents, and by their checksums
   the whole file, with the deployment's key.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from core.codec import CHAIN_KEY_BYTES, digest, known_keys, newest_key
from core.errors import Corrupt
from core.ids import StreamSeq
from core.snapshot_manifest import Manifest

ARCHIVE_VERSION = 3
"""Changed whenever a reader of the one before could not read this one."""
ARCHIVE_VERSION_WITHOUT_EXCERPTS = 2
"""The version of an archive of all messages of its range, with columns of prompts; this program reads it, too."""
ARCHIVE_VERSION_WITHOUT_COLUMNS = 1
"""The version of an archive without columns of prompts; this program reads it, too."""
MAGIC = b"CTRLLOG\x01"
END = b"CTRLEND\x01"
FOOTER = struct.Struct("<QQ16s8s")
"""Offset, size and checksum of the contents, then END."""
CHECKSUM_BYTES = 16
BLOCK_BYTES = 512 * 1024
"""A block is closed once its payloads are this long."""
ROW_BYTES = 64
"""Approximate bytes of a row beside its payload, as a block counts them."""
ZSTD_LEVEL = 3


class Row(NamedTuple):
    """One message in a block."""

    seq: StreamSeq
    time_ms: int
    owner: str
    """The owner of its subject: the subject's last token."""
    payload: bytes


class FileExtent(msgspec.Struct, frozen=True):
    """Position, length and checksum of some bytes in the file."""

    offset: int
    size: int
    checksum: str


class ArchiveBlock(msgspec.Struct, frozen=True):
    """Messages of one stream."""

    stream: str
    first_seq: int
    last_seq: int
    first_ms: int
    last_ms: int
    messages: int
    piece: FileExtent


class Span(msgspec.Struct, frozen=True):
    """The part of one stream in an archive."""

    epoch: int
    first_seq: int
    """The first message that it would hold if the log had retained it."""
    last_seq: int
    """The last one; first_seq - 1 if there is none."""
    log_first_seq: int
    """The oldest that the log retained then."""

    @property
    def begin(self) -> int:
        """The first message that it can hold: what lies before is in a snapshot, or gone."""
        return max(self.first_seq, self.log_first_seq)


class PromptColumn(NamedTuple):
    """All block hashes of the prompt of a decision that stands before the archive's range and is continued in it."""

    seq: int
    place: int
    """Of the decision among the events of its message."""
    hashes: bytes


class SavedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot in the archive."""

    manifest: Manifest
    piece: FileExtent


class Head(msgspec.Struct, frozen=True):
    """The end of one source's chain in the archive."""

    n: int
    digest: str
    """Chain digest of that message, 32 hex digits."""


class ExcerptDecision(NamedTuple):
    """A decision of which an excerpt has the state."""

    seq: int
    """Of the message in the routing stream that says it …"""
    place: int
    """… and of the decision among the events of that message."""
    reason: str = ""
    """Why the whole log does not show its view (`replay.verify.evidence.REASONS`); empty if it does …"""
    why: str = ""
    """… and the same as a sentence."""


class Excerpt(msgspec.Struct, frozen=True, kw_only=True):
    """The request to which an archive was cut."""

    request: str
    decisions: list[ExcerptDecision]
    """In the order of the log; the archive has one snapshot for each, in this order."""
    left_out: int = 0
    """Messages beside the request's own that were not taken, so that the file stays small."""
    seal: str = ""
    """Keyed digest of the contents without it, 32 hex digits; empty if the writer had no key."""


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of an archive, as JSON that a person can read."""

    v: int = ARCHIVE_VERSION_WITHOUT_COLUMNS
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
    blocks: list[ArchiveBlock]
    snapshots: list[SavedSnapshot]
    """Oldest first."""
    heads: dict[str, dict[str, Head]]
    """Per stream and source."""
    columns: FileExtent | None = None
    """A msgpack list of `PromptColumn`, in zstd."""
    excerpt: Excerpt | None = None
    """None for an archive of all messages of its range."""

    def to_bytes(self) -> bytes:
        """The inverse of `parse`."""
        return msgspec.json.encode(self)

    @property
    def messages(self) -> int:
        """In all streams."""
        return sum(block.messages for block in self.blocks)

    @property
    def end_ms(self) -> int:
        """The moment up to which it tells: that which was asked for, else its newest message's."""
        return self.to_ms or max((block.last_ms for block in self.blocks), default=self.made_ms)

    @staticmethod
    def parse(value: bytes) -> Contents:
        """Corrupt if it is none, or of a version that this program does not read."""
        try:
            version = _version.decode(value).v
            if not ARCHIVE_VERSION_WITHOUT_COLUMNS <= version <= ARCHIVE_VERSION:
                raise Corrupt(f"it is of version {version} of an export's form; this program reads {ARCHIVE_VERSION}")
            return _decoder.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Corrupt(f"its contents cannot be read: {error}") from error

    def check(self, start: int, end: int) -> None:
        """Corrupt unless the pieces lie one behind the other from `start` to `end`, and blocks and spans fit: what is
        read later relies on it. Some microseconds per block."""
        at = start
        for piece in sorted(self.pieces(), key=lambda piece: piece.offset):
            if piece.offset != at or piece.size <= 0 or not _is_hex(piece.checksum, CHECKSUM_BYTES):
                raise Corrupt(f"its contents name bytes that are not there, or leave some out, at {at}")
            at += piece.size
        if at != end:
            raise Corrupt(f"its contents name {at} bytes of {end}")
        last = {stream: span.first_seq - 1 for stream, span in self.streams.items()}
        for block in self.blocks:
            if not last.get(block.stream, block.last_seq) < block.first_seq <= block.last_seq:
                raise Corrupt(f"its contents name blocks of {block.stream!r} that are not in order")
            last[block.stream] = block.last_seq
        if any(seq > self.streams[stream].last_seq for stream, seq in last.items()):
            raise Corrupt("its contents name messages beyond the end of a stream")
        digests = [head.digest for heads in self.heads.values() for head in heads.values()]
        if not all(_is_hex(digest, CHECKSUM_BYTES) for digest in [*digests, self.key_check]):
            raise Corrupt("its contents name digests that are none")
        if self.redacted and not _is_hex(self.chain_key, CHAIN_KEY_BYTES):
            raise Corrupt("its contents name a key that is none")

    def excerpted(self, excerpt: Excerpt, chain_key: bytes) -> Contents:
        """The contents of an excerpt, sealed; without a seal if the key is empty."""
        plain = replace(self, v=ARCHIVE_VERSION, excerpt=replace(excerpt, seal=""))
        if not chain_key:
            return plain
        return replace(plain, excerpt=replace(excerpt, seal=seal_of(plain.to_bytes(), newest_key(chain_key))))

    def pieces(self) -> list[FileExtent]:
        """All pieces of the file but the contents themselves, in no order."""
        pieces = [block.piece for block in self.blocks] + [saved.piece for saved in self.snapshots]
        return pieces if self.columns is None else [*pieces, self.columns]


def checksum(data: bytes) -> bytes:
    """Checksum that finds damage."""
    return hashlib.blake2b(data, digest_size=CHECKSUM_BYTES).digest()


def seal_of(contents: bytes, key: bytes) -> str:
    """The seal of an excerpt's contents, which have none yet, by the key of one generation; 32 hex digits."""
    return digest(contents, key).hex()


def has_seal(contents: bytes, seal: str, chain_key: bytes) -> bool:
    """True if one of the key's generations sealed these contents, which hold the seal."""
    plain = contents.replace(f'"seal":"{seal}"'.encode(), b'"seal":""', 1)
    return seal in {seal_of(plain, key) for key in known_keys(chain_key)}


def _is_hex(text: str, size: int) -> bool:
    return len(text) == 2 * size and not set(text) - _HEX_DIGITS


def key_check(chain_key: bytes) -> str:
    """Text that differs between chain keys, by their newest generation, and reveals nothing of them."""
    return hashlib.blake2b(b"archive", key=newest_key(chain_key), digest_size=CHECKSUM_BYTES).hexdigest()


def is_key_of(chain_key: bytes, check: str) -> bool:
    """True if one of the key's generations was the newest of the deployment with this `key_check`."""
    return check in {key_check(key) for key in known_keys(chain_key)}


class _Version(msgspec.Struct):
    v: int


_HEX_DIGITS = set("0123456789abcdef")
_version: msgspec.json.Decoder[_Version] = msgspec.json.Decoder(_Version)
_decoder: msgspec.json.Decoder[Contents] = msgspec.json.Decoder(Contents)
