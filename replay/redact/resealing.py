"""Resealing: an archive's messages on new chains; a message follows on the one before it exactly if it did before.

The first message of a source keeps the digest that it names: it goes on from a snapshot, or from what is not there.
A message that names another digest than that of the one before it keeps it too: it was a gap, and stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from core.codec import CHAIN_START, DIGEST_BYTES, Message, decode_message, digest, generation_of, key_of
from core.errors import Corrupt
from core.ids import StreamName
from core.subjects import owner
from streams.archive.archive_reader import ArchiveReader
from streams.log import Record

Sealing = Callable[[Record, Message, bytes], bytes]
"""From a message and the digest of the one before it to the sealed bytes."""


class ChainEnd(NamedTuple):
    """The last message of a source."""

    n: int
    old: bytes
    """Its digest before redaction; empty without the key."""
    new: bytes
    prev_old: bytes
    """Digest that it named as the one before it …"""
    prev_new: bytes
    """… and names now."""


class ChainsAtSnapshot(NamedTuple):
    """Heads of a stream's new chains at a snapshot's cursor."""

    head: bytes | None
    """New digest of the message at the cursor; None if that is as it was."""
    ends: Mapping[str, ChainEnd]
    """By owner."""


class ResealedChains:
    """The chains of one stream. Grows with the number of sources."""

    def __init__(self, old_key: bytes, new_key: bytes) -> None:
        """Without the old key a message follows if its number does."""
        self.last = CHAIN_START
        """The new digest of the record sealed last."""
        self._old_key = old_key
        self._new_key = new_key
        self._ends: dict[tuple[str, str], ChainEnd] = {}

    def __repr__(self) -> str:
        return f"<ResealedChains of {len(self._ends)} sources>"

    def seal(self, record: Record, make: Sealing) -> bytes:
        """The new bytes in the place of the record's, which is the next one of the stream; nothing is left of what is
        no message of ours."""
        try:
            message = decode_message(record.payload)
        except Corrupt:
            message = None
        if message is None or message.n < 0:
            self.last = digest(b"", self._new_key)
            return b""
        key = owner(record.subject), message.source
        end = self._ends.get(key)
        prev = self._prev(message, end)
        payload = make(record, message, prev)
        self.last = digest(payload, self._new_key)
        if end is None or message.n > end.n:
            is_known = self._old_key and key_of(self._old_key, generation_of(record.payload)) is not None
            old = digest(record.payload, self._old_key) if is_known else b""
            self._ends[key] = ChainEnd(message.n, old, self.last, message.prev, prev)
        return payload

    def ends(self) -> dict[str, ChainEnd]:
        """Heads of the new chains by owner, of owners with messages."""
        return {whose: end for (whose, source), end in self._ends.items() if whose == source}

    def _prev(self, message: Message, end: ChainEnd | None) -> bytes:
        if end is not None and message.n == end.n + 1 and (not end.old or message.prev == end.old):
            return end.new
        if end is not None and (message.n, message.prev) == (end.n, end.prev_old):
            return end.prev_new  # stored twice, and the same again
        return message.prev if len(message.prev) == DIGEST_BYTES else digest(message.prev, self._new_key)


class Resealing:
    """All streams of an archive; see the module's text."""

    def __init__(self, source: ArchiveReader, old_key: bytes, new_key: bytes) -> None:
        self._source = source
        self._make_chains = partial(ResealedChains, old_key, new_key)
        self._passed: dict[str, dict[StreamName, ChainsAtSnapshot]] = {
            manifest.id: {} for manifest in source.snapshots()
        }

    def __repr__(self) -> str:
        return f"<Resealing of {self._source!r}>"

    def stream(self, stream: StreamName, make: Sealing) -> Iterator[tuple[Record, bytes]]:
        """Its records with their new bytes, in order."""
        chains, last = self._make_chains(), 0
        cursors = sorted((m.cursor[stream].seq, m.id) for m in self._source.snapshots() if stream in m.cursor)
        for record in self._source.read(stream):
            while cursors and cursors[0][0] < record.seq:
                self._pass(stream, *cursors.pop(0), chains, last)
            yield record, chains.seal(record, make)
            last = record.seq
        for seq, snapshot in cursors:
            self._pass(stream, seq, snapshot, chains, last)

    def passed(self, snapshot: str) -> Mapping[StreamName, ChainsAtSnapshot]:
        """Heads of the chains at its cursor, of the streams read so far."""
        return self._passed[snapshot]

    def _pass(self, stream: StreamName, seq: int, snapshot: str, chains: ResealedChains, last: int) -> None:
        self._passed[snapshot][stream] = ChainsAtSnapshot(chains.last if last == seq else None, chains.ends())
