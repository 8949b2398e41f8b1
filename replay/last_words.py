"""Last words: the newest message of each of some sources before a place in a stream, found by looking back from it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from core.ids import StreamName, StreamSeq
from core.subjects import owner
from streams.archive.archive_reader import ArchiveReader

LOOK_FIRST = 512
"""Messages looked through at first; four times as many each time that somebody was not among them."""
LOOK_MAX = 32_768
"""No further back than this: some 60 ms."""


class Word(NamedTuple):
    """Where a message stands, and when the log stored it."""

    seq: StreamSeq
    time_ms: int


def last_words(archive: ArchiveReader, stream: StreamName, upto: int, owners: Collection[str]) -> dict[str, Word]:
    """Per owner its newest message at or before `upto`; those are missing who said nothing near enough."""
    found: dict[str, Word] = {}
    end, look = upto + 1, LOOK_FIRST
    while end > max(1, upto - LOOK_MAX) and not found.keys() >= set(owners):
        start = max(1, end - look)
        here = {
            who: Word(record.seq, record.time_ms)
            for record in archive.read(stream, start, end)
            if (who := owner(record.subject)) in owners
        }
        found = here | found
        end, look = start, 4 * look
    return found
