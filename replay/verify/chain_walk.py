"""ChainWalk: the chains of one stream, checked message by message: source, number, and the digest of the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from core.codec import CHAIN_START
from core.events import ReplicaLeft, ReplicaLost
from core.ids import LOST_SUFFIX, SourceId, StreamName, StreamSeq
from core.subjects import ROUTING, owner
from replay.recording.gaps import CUT, DELETED, GAP, UNTOLD, RecordingGap
from streams.archive.archive_format import Head, Span
from streams.archive.message_envelope import Envelope, envelope
from streams.log import Record

_LEFT, _LOST = ReplicaLeft.__name__, ReplicaLost.__name__


class ChainFault(NamedTuple):
    """One thing that is wrong; see `replay.verify.chain_proof.ChainBreak`."""

    kind: str
    seq: int
    source: str
    n: int
    what: str


class SequenceHole(NamedTuple):
    """Sequences at which the stream holds nothing, though it should."""

    first: StreamSeq
    last: StreamSeq

    @property
    def messages(self) -> int:
        """How many."""
        return self.last - self.first + 1


class _Source:
    """How far one source has been read."""

    __slots__ = ("head", "n_next", "seq")

    def __init__(self, n_next: int, head: bytes) -> None:
        self.n_next = n_next
        self.head = head
        self.seq = StreamSeq(0)
        """Of its last message."""


class ChainWalk:
    """Takes one stream's records in order."""

    def __init__(self, stream: StreamName, span: Span, name: Callable[[StreamName, str], str]) -> None:
        self.stream = stream
        self.messages = 0
        self.sources: dict[SourceId, _Source] = {}
        self._span = span
        self._cut = max(span.first_seq, span.log_first_seq) > 1
        """Whether sources may have spoken before, of whom nothing is known."""
        self._name = name
        self._next = StreamSeq(max(span.first_seq, span.log_first_seq))
        self._holes: list[SequenceHole] = []
        self._gaps: list[RecordingGap] = []
        self._lost: dict[SourceId, StreamSeq] = {}
        """Replicas that others found lost, and where that was said."""
        self._left: set[str] = set()

    def __repr__(self) -> str:
        return f"<ChainWalk of {self.stream}: {self.messages} messages of {len(self.sources)} sources>"

    def know(self, chains: Mapping[SourceId, tuple[int, bytes]]) -> None:
        """A snapshot has the next number and the head of every source, where the walk stands."""
        self._cut = False
        for source, at in chains.items():
            self.sources.setdefault(source, _Source(*at))

    def take(self, record: Record, head: bytes) -> Iterator[ChainFault]:
        """What is wrong with the next record; `head` is its digest, empty if there is no key."""
        if record.seq > self._next:
            self._holes.append(SequenceHole(self._next, StreamSeq(record.seq - 1)))
        self._next = StreamSeq(record.seq + 1)
        said, whose = envelope(record.payload), owner(record.subject)
        if said is None:
            self._holes.append(SequenceHole(record.seq, record.seq))
            what = f"{self.stream}:{record.seq} cannot be read: it is no message of ours"
            yield ChainFault("unreadable", record.seq, whose, -1, what)
            return
        self.messages += 1
        if not said.of(whose):
            what = f"{self._where(record)} is signed by {said.source}, on the subject of {self._who(whose)}"
            yield ChainFault("foreign", record.seq, whose, said.n, what)
            return
        if self.stream == ROUTING:
            self._note_end(record, said)
        yield from self._follow(record, SourceId(said.source), said.n, said.prev, head)

    def _note_end(self, record: Record, said: Envelope) -> None:
        kinds = {event.type for event in said.events} & {_LEFT, _LOST}
        if _LEFT in kinds:
            self._left.add(said.source)
        elif _LOST in kinds and said.source.endswith(LOST_SUFFIX):
            self._lost.setdefault(SourceId(said.source.removesuffix(LOST_SUFFIX)), record.seq)

    def end(self, heads: Mapping[str, Head]) -> Iterator[ChainFault]:
        """What is wrong with the ends of the chains, by what the export says that they are."""
        if self._next <= self._span.last_seq:
            self._holes.append(SequenceHole(self._next, StreamSeq(self._span.last_seq)))
        for name, at in self.sources.items():
            source, told = str(name), heads.get(name)
            if at.seq and told is None:
                yield self._last(source, at, "the export does not say with which message it ends")
            elif at.seq and told is not None and told.n != at.n_next - 1:
                yield self._last(source, at, f"by what the export says message {told.n} is")
            elif at.seq and told is not None and at.head and told.digest != at.head.hex():
                yield self._last(source, at, "and by what the export says it was another: it was changed")
        for source in sorted(heads.keys() - {source for source, at in self.sources.items() if at.seq}):
            what = f"the export names a last message of {self._who(source)}, and holds none of it"
            yield ChainFault("last", 0, source, heads[source].n, what)

    def gaps(self) -> list[RecordingGap]:
        """What is missing, in the order in which it was noticed; holes that nobody's chain accounts for come last."""
        found = list(self._gaps)
        for hole in self._holes:
            known = sum(gap.messages for gap in self._gaps if _overlap(gap, hole))
            if known < hole.messages:
                found.append(self._unclaimed(hole, hole.messages - known))
        return found

    def untold(self) -> list[RecordingGap]:
        """Replicas that were found lost and of whose last words nobody can know whether the log has them."""
        found = []
        for source, lost in self._lost.items():
            at = self.sources.get(source)
            if at is not None and source not in self._left:
                numbers = (at.n_next, at.n_next - 1)
                found.append(self._gap(UNTOLD, source, numbers, (at.seq, lost), at.seq))
        return found

    def _follow(self, record: Record, source: SourceId, n: int, prev: bytes, head: bytes) -> Iterator[ChainFault]:
        at = self.sources.get(source)
        if at is None:
            at = self.sources[source] = _Source(0, CHAIN_START if head else b"")
        if n < at.n_next:
            if n != at.n_next - 1 or (head and head != at.head):
                what = f"{self._where(record)} is message {n} of {self._who(source)}, which was said before"
                yield ChainFault("twice", record.seq, source, n, what)
            return
        if n > at.n_next:
            gap = self._missing(record, source, at, n)
            self._gaps.append(gap)
            if gap.kind != CUT:
                yield ChainFault("missing", record.seq, source, at.n_next, gap.text)
        elif head and prev != at.head:
            yield self._changed(record, source, at, n)
        at.n_next, at.head, at.seq = n + 1, head, record.seq

    def _changed(self, record: Record, source: SourceId, at: _Source, n: int) -> ChainFault:
        self._gaps.append(self._gap(GAP, source, (max(0, n - 1), max(0, n - 1)), (at.seq, record.seq), record.seq))
        if not n:
            what = f"message 0 of {self._who(source)} at {self._where(record)} does not begin a chain: it was changed"
            return ChainFault("changed", record.seq, source, n, what)
        before = f"message {n - 1} at {self.stream}:{at.seq}" if at.seq else f"message {n - 1}, before the export"
        what = (
            f"message {n} of {self._who(source)} at {self._where(record)} does not follow on {before}: "
            f"message {n - 1} was changed, or {n} was written by somebody without the key"
        )
        return ChainFault("changed", record.seq, source, n - 1, what)

    def _missing(self, record: Record, source: SourceId, at: _Source, n: int) -> RecordingGap:
        holes = [hole for hole in self._holes if hole.first > at.seq]
        numbers = (at.n_next, n - 1)
        if self._cut and not at.seq:
            return self._gap(CUT, source, numbers, (StreamSeq(1), record.seq), record.seq)
        if holes:
            return self._gap(DELETED, source, numbers, (holes[0].first, record.seq), holes[-1].last)
        return self._gap(GAP, source, numbers, (StreamSeq(at.seq + 1), record.seq), record.seq)

    def _gap(
        self,
        kind: str,
        source: SourceId,
        numbers: tuple[int, int],
        between: tuple[StreamSeq, StreamSeq],
        sure: StreamSeq,
    ) -> RecordingGap:
        return RecordingGap(
            kind=kind,
            stream=self.stream,
            source=source,
            name="" if (name := self._name(self.stream, source)) == source else name,
            n_from=numbers[0],
            n_to=numbers[1],
            after=between[0],
            noticed=between[1],
            sure=sure,
        )

    def _unclaimed(self, hole: SequenceHole, messages: int) -> RecordingGap:
        return RecordingGap(
            kind=DELETED,
            stream=self.stream,
            source=None,
            name="",
            n_from=0,
            n_to=messages - 1,
            after=hole.first,
            noticed=None,
            sure=hole.last,
        )

    def _last(self, source: str, at: _Source, why: str) -> ChainFault:
        what = f"message {at.n_next - 1} at {self.stream}:{at.seq} is the last of {self._who(source)} here, {why}"
        return ChainFault("last", at.seq, source, at.n_next - 1, what)

    def _where(self, record: Record) -> str:
        return f"{self.stream}:{record.seq}"

    def _who(self, source: str) -> str:
        name = self._name(self.stream, source)
        kind = "replica" if self.stream == ROUTING else "worker"
        return f"{kind} {source}" if name == source else f"{kind} {name} ({source})"


def _overlap(gap: RecordingGap, hole: SequenceHole) -> bool:
    return gap.kind == DELETED and gap.after <= hole.last and hole.first < (gap.noticed or 0)
