"""SourceFold: a pure fold of one stream, in parts, one per source, with a digest of all parts.

1. An event changes only the part of its own source, so the order between sources cannot matter; facts of two streams
   are joined in `projections.policy.view`. There is no clock, no randomness and no I/O in a fold: live tail, rebuild
   and replay run the same code.
2. Each source's messages form a chain. `Chain.follow` tells if the next message continues it. After a gap the source
   is unknown until it restates itself.
3. The digest is the sum over the parts that are alive, and covers only facts that a restatement makes whole. So three
   folds have equal digests at an equal cursor once no source is unknown: one from the log's start, one from a
   snapshot, and one of a log with its start cut off.
4. A part that ended leaves an entry in `Tombstones` and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import xxhash

from core.codec import CHAIN_START, Message
from core.events import PoolLost, ReplicaLost, WorkerLost
from core.ids import LOST_SUFFIX, SourceId, StreamName, StreamSeq
from core.subjects import ROUTING
from projections.digest import MASK64


class ChainVerdict(Enum):
    """Relation of a message to its source's chain."""

    NEXT = "next"
    """It follows: apply it."""
    REPEAT = "repeat"
    """It was applied already: skip it."""
    GAP = "gap"
    """Something before it is missing or another: what is folded of its source is void."""


class MissingMessages(NamedTuple):
    """Messages of one source that its chain proves to exist and that were not there to be folded."""

    source: SourceId
    n_from: int
    n_to: int
    """The last of them."""


class ChainGap(NamedTuple):
    """The same with the place in the log where it was noticed."""

    stream: StreamName
    source: SourceId
    n_from: int
    n_to: int
    seq: StreamSeq
    """Of the first message behind them."""

    def __str__(self) -> str:
        source = f"{'replica' if self.stream == ROUTING else 'worker'} {self.source}"
        if self.n_to == self.n_from:
            return f"message {self.n_from} of {source} is missing before {self.stream}:{self.seq}"
        return f"messages {self.n_from} to {self.n_to} of {source} are missing before {self.stream}:{self.seq}"


class Chain(msgspec.Struct):
    """Position in the chain of one source; `n_next` is 0 before its first message."""

    n_next: int = 0
    head: bytes = CHAIN_START

    def follow(self, message: Message, digest: bytes) -> ChainVerdict:
        """The verdict on the message; after NEXT and GAP the chain stands behind it."""
        if message.n < self.n_next:
            return ChainVerdict.REPEAT
        fits = message.n == self.n_next and message.prev == self.head
        self.n_next = message.n + 1
        self.head = digest
        return ChainVerdict.NEXT if fits else ChainVerdict.GAP


def missing_before(before: int, message: Message) -> MissingMessages:
    """The messages that a gap lacks, where `before` messages had been read.

    If none is left out by number, the one just before it is another than the one that was read.
    """
    return MissingMessages(message.source, min(before, max(message.n - 1, 0)), max(message.n - 1, 0))


TOMBSTONES_MAX = 4096
"""Bound of one stream's tombstones; the oldest goes first. The log refuses messages after an end, so a tombstone is
needed only while copies of old messages may still arrive."""
REASON_CHARS_MAX = 120


class Tombstones(dict[str, str]):
    """Ids, and why each one is over; oldest first. No part of any digest."""

    def add(self, who: str, why: str) -> None:
        """It is over; the oldest tombstone makes room."""
        self[who] = why[:REASON_CHARS_MAX]
        if len(self) > TOMBSTONES_MAX:
            del self[next(iter(self))]


class SourcePart(Protocol):
    """All that a fold has of one source."""

    chain: Chain
    digest: int
    """This part's contribution to the fold's digest; 0 before it counts."""


S = TypeVar("S", bound=str)
P = TypeVar("P", bound=SourcePart)


class SourceFold(ABC, Generic[S, P]):
    """State folded from one stream: sources of type S, each with its part of type P."""

    lost: ClassVar[tuple[type[WorkerLost | PoolLost | ReplicaLost], ...]] = (WorkerLost,)
    """The events by which others end a source."""

    def __init__(self) -> None:
        self.parts: dict[S, P] = {}
        """Of the sources that have not ended. Some folds have a name of their own for this one dictionary."""
        self.ended = Tombstones()
        self.unknown: set[S] = set()
        """Sources with a gap in their chain and no restatement since."""
        self.foreign: set[S] = set()
        """Sources of which the newest message should follow the one before it, and does not by the key of this fold:
        another key sealed them, or a message was changed. No part of any digest or snapshot."""
        self.unknown_events = 0
        """Events of types that this program does not know: kept in the log, not folded."""
        self.missing: list[MissingMessages] = []
        """Messages missing in the chains, since `State` emptied this list."""
        self.digest = 0
        """64 bits, equal for equal states; kept up to date by every apply."""

    @property
    def incomplete(self) -> int:
        """Number of unknown sources. O(1)."""
        return len(self.unknown)

    def apply(self, owner: str, message: Message, digest: bytes) -> bool:
        """Folds one message of the subject that `owner` owns; False if it changed nothing: it was a repeat, came from
        another source, or follows the owner's end."""
        if owner in self.ended:
            self._note_behind_end(owner, message)
            return False
        source: S = owner  # type: ignore[assignment]
        if message.source == owner:
            return self._apply_own(source, message, digest)
        if message.source == owner + LOST_SUFFIX:
            return self._apply_lost(source, message)
        return False

    def _apply_own(self, source: S, message: Message, digest: bytes) -> bool:
        part = self.parts.get(source) or self._begin(source)
        n_next = part.chain.n_next
        verdict = part.chain.follow(message, digest)
        if verdict is ChainVerdict.REPEAT:
            return False
        if verdict is ChainVerdict.GAP:
            self.missing.append(missing_before(n_next, message))
            self._void(part)
            if message.n == n_next:
                self.foreign.add(source)
        elif self.foreign:
            self.foreign.discard(source)
        self._fold(part, message)
        if source not in self.ended:
            self._account(source, part)
        return True

    def _apply_lost(self, source: S, message: Message) -> bool:
        for event in message.events:
            if isinstance(event, self.lost):
                self._end(source, f"lost: {event.reason}")
                return True
        return False

    def _note_behind_end(self, owner: str, message: Message) -> None:
        """Facts behind the end of the owner are noted; they are no part of the fold."""

    def _account(self, source: S, part: P) -> None:
        """The sums have the part as it is now."""
        if self._is_known(part):
            self.unknown.discard(source)
        else:
            self.unknown.add(source)
        weight = self._weight(part)
        self.digest = (self.digest - part.digest + weight) & MASK64
        part.digest = weight

    def _bury(self, source: S, part: P | None, reason: str) -> None:
        """Nothing is left of the part but its tombstone."""
        if part is not None:
            self.digest = (self.digest - part.digest) & MASK64
        self.unknown.discard(source)
        self.foreign.discard(source)
        self.ended.add(source, reason)

    @abstractmethod
    def _begin(self, source: S) -> P:
        """The part of a source that had none, which `parts` has from now on."""

    @abstractmethod
    def _void(self, part: P) -> None:
        """Messages before the next one are missing."""

    @abstractmethod
    def _fold(self, part: P, message: Message) -> None:
        """The message's events are in the part. Nothing follows an end, in its own message neither."""

    @abstractmethod
    def _end(self, source: S, reason: str) -> None:
        """The source is over, whether it has a part here or not; its part is buried."""

    @abstractmethod
    def _weight(self, part: P) -> int:
        """The part's contribution to the digest now, in 64 bits; 0 before it counts."""

    def _is_known(self, part: P) -> bool:
        """True if the part has all of its source since the last restatement."""
        del part
        return True


def stamp(chain: Chain, identity: int) -> int:
    """64 bits from the source's position and its identity. 0.2 us: made for every message."""
    return xxhash.xxh3_64_intdigest(chain.head, (identity + chain.n_next) & MASK64)
