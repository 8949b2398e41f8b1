"""DecisionBases: the decisions of the log that a new decision may continue, so that its record has only new hashes.

A turn of a talk repeats the prompt of the turn before it. Its record then names the decision of that turn
(`core.events.PromptBase`) and holds the hashes behind it. Which decision that is needs no agreement between replicas:
the record says it, and no fold reads the other decision. `replay.recording.prompt_columns` puts prompts together again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from core.events import Event, PromptBase, RequestRouted, UnknownEvent
from core.events.routing import CONTINUED_VERSION
from core.ids import Epoch, StreamSeq
from core.prompt import HASH_BYTES, column_digest, sampled
from core.subjects import ROUTING
from streams.log import StreamState

GRID = 16
"""A prompt may continue another one up to every so many-th block of that, and up to its last: turns often change the
end of the prompt before them."""
HASHES_MAX = 131_072
"""Bound of the hashes by which decisions are found, those noted last; some 200 bytes each."""
ROOT_SHARE = 0.25
"""A chain ends when so much of what the stream may keep follows its start, in bytes …"""
ROOT_AGE_MAX_MS = 7 * 86_400_000 // 4
"""… or in time: a reader of a log that is kept finds all hashes of its prompts."""
BLOCKS_MIN = 64
"""A decision that shares fewer blocks is not worth naming: that would save less than a fifth of the record, for a
twentieth of a short request's CPU; and other prompts see a few of its shared blocks only."""


class _Base(NamedTuple):
    """One decision that may be continued."""

    seq: StreamSeq
    place: int
    root: int
    root_ms: int
    """The time of the decision at the start of the chain, by its record."""


class DecisionBases:
    """See the module's text. It holds decisions that were folded from the log, of all replicas."""

    def __init__(self, root_age_max_ms: int = ROOT_AGE_MAX_MS) -> None:
        """A chain ends when its first decision is that old."""
        self.root_min = StreamSeq(0)
        """Chains that begin before this sequence end, too (`retained`)."""
        self._root_age_max_ms = root_age_max_ms
        self._epoch: Epoch | None = None
        self._by_hash: dict[int, _Base] = {}
        """Decision by a hash of its prompt, which tells the depth, too; the hashes noted last come last."""

    def __repr__(self) -> str:
        return f"<DecisionBases {len(self._by_hash)} hashes>"

    def __len__(self) -> int:
        return len(self._by_hash)

    def clear(self) -> None:
        """No decision can be continued: the log may have lost some."""
        self._by_hash.clear()

    def retained(self, stream: StreamState) -> None:
        """Chains end in time by the routing stream as it is now."""
        if stream.age_max_s:
            self._root_age_max_ms = round(stream.age_max_s * 1000 * ROOT_SHARE)
        kept = ROOT_SHARE * stream.bytes_max * stream.messages / stream.bytes if stream.bytes else 0
        self.root_min = StreamSeq(max(stream.first_seq, stream.last_seq - round(kept) if kept else 0))

    def note(self, epoch: Epoch, seq: StreamSeq, events: Sequence[Event | UnknownEvent]) -> None:
        """A message of the routing stream was folded. Some 0.5 us for every GRID new blocks of a decision."""
        if epoch != self._epoch:
            self._epoch = epoch
            self.clear()
        for place, event in enumerate(events):
            if type(event) is RequestRouted and event.believed is None:
                self._note(seq, place, event)

    def _note(self, seq: StreamSeq, place: int, event: RequestRouted) -> None:
        base, hashes, by_hash = event.base, event.hashes, self._by_hash
        shared = base.blocks if isinstance(base, PromptBase) else 0
        last = shared + len(hashes) // HASH_BYTES
        if last < BLOCKS_MIN:
            return
        found = _Base(seq, place, int(seq), event.now_ms)
        if isinstance(base, PromptBase):
            found = _Base(seq, place, base.root, event.now_ms - base.age_ms)
        first = max(BLOCKS_MIN, shared + 1)
        for depth in (*range(first + -first % GRID, last, GRID), last):
            end = HASH_BYTES * (depth - shared)
            known = hashes[end - HASH_BYTES : end] if end else _last_of(base)
            key = int.from_bytes(known, "little")
            by_hash.pop(key, None)
            by_hash[key] = found
        while len(by_hash) > HASHES_MAX:
            del by_hash[next(iter(by_hash))]

    def shortened(self, event: RequestRouted, version: int = CONTINUED_VERSION) -> RequestRouted:
        """The decision, in this version, as one that continues the longest known prompt which is a start of its own;
        the event itself if there is none. Some 20 ns for each new block, and 1 us per KiB of all hashes."""
        hashes = event.hashes
        if event.believed is not None or event.base is not UNSET or len(hashes) < HASH_BYTES * BLOCKS_MIN:
            return event
        longest = self._longest(event)
        if longest is None:
            return event
        blocks, found = longest
        base = PromptBase(
            seq=found.seq,
            place=found.place,
            blocks=blocks,
            root=found.root,
            age_ms=event.now_ms - found.root_ms,
            hashes=sampled(hashes, blocks),
            column=column_digest(hashes),
        )
        return replace(event, v=version, base=base, hashes=hashes[HASH_BYTES * blocks :])

    def _longest(self, event: RequestRouted) -> tuple[int, _Base] | None:
        """The blocks that are shared, and the decision: one that the event's own cursor covers."""
        epoch, seq = event.cursor.get(ROUTING, (None, 0))
        if epoch is None or epoch != self._epoch or not self._by_hash:
            return None
        column = array("Q", event.hashes)
        column.reverse()
        known = map(self._by_hash.__contains__, column)
        for blocks in compress(range(len(column), 0, -1), known):
            found = self._by_hash[column[-blocks]]
            if found.seq <= seq and self._may_continue(found, event.now_ms):
                return blocks, found
        return None

    def _may_continue(self, found: _Base, now_ms: int) -> bool:
        return found.root >= self.root_min and now_ms - found.root_ms < self._root_age_max_ms


def _last_of(base: PromptBase | UnsetType) -> bytes:
    """The hash of the last block that is shared with the base."""
    assert isinstance(base, PromptBase)
    return base.hashes[-HASH_BYTES:]
