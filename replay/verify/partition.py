"""Partition: the decisions that `verify` makes again, cut into shares of the log that take about as long each."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Collection, Mapping
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgspec

from core.events import RequestRejected, RequestRouted
from core.events.compact_decision import COMPACT_TYPES, cursor_of, partial_values
from core.ids import ReplicaId, StreamName, StreamSeq
from core.subjects import ROUTING, owner
from replay.playback.playback import Playback
from replay.recording.gaps import Gaps
from replay.recording.recording import Cursor, Recording
from streams.archive.archive_format import Row
from streams.archive.message_envelope import envelope

SHARE_MIN = 2000
"""Fewer decisions than this per process are not worth starting it."""
JUDGE_FOLDS = 9.0
"""The time to judge a decision, in foldings of a message: as measured on logs with 1.3 to 20 messages per decision."""
PROOF_FOLDS = 0.3
"""The time to prove a message, in foldings of a message."""
HALVINGS = 24

_ROUTED, _REJECTED = COMPACT_TYPES | {RequestRouted.__name__}, RequestRejected.__name__
_Values = partial_values("cursor")


class LogShare(NamedTuple):
    """A share of the log that one process plays."""

    start: int
    end: int | None
    replicas: Collection[ReplicaId] | None
    numbers: Mapping[ReplicaId, int]
    """The number of each replica's next message at the start of the share."""
    gaps: Gaps

    def playback(self, recording: Recording) -> Playback:
        """The playback of this share."""
        if self.start > 1:
            recording.columns.read_up_to(self.start)
        return Playback(recording, self.start, self.end, replica=self.replicas, gaps=self.gaps, numbers=self.numbers)


class Partition:
    """The decisions to be made again, and their number."""

    def __init__(
        self, recording: Recording, start: int, end: int | None, only: Collection[ReplicaId] | None, gaps: Gaps
    ) -> None:
        """Counts the decisions by a reading of its own; some 4 us per message of the routing stream."""
        self.recording = recording
        self.whole = not gaps.all and not gaps.replaced and not _is_cut(recording)
        """True if the recording has all that its decisions depend on. If not, the result of a decision that cannot be
        judged depends on the decisions played before it, so there is one share."""
        self.decisions: Counter[ReplicaId] = Counter()
        """Decisions per replica, by the owner of their subject."""
        self.refusals = 0
        """Requests that no worker could serve."""
        self._start, self._end, self._only, self._gaps = start, end, only, gaps
        self._seqs: list[int] = []
        self._counts: list[int] = []
        """Messages with decisions, and how many each has."""
        self._fold_share = 0.0
        """The time to fold a message, in decisions made again: folded up to, and judged."""
        for row in recording.archive.rows(ROUTING, start, end):
            replica = ReplicaId(owner(row.owner))
            if only is None or replica in only:
                self._count(replica, row)
        if self._seqs:
            folded = sum(self._cursor(-1).values()) - sum(self._cursor(0).values())
            self._fold_share = 1 / (JUDGE_FOLDS + max(0, folded) / self.total)

    def __repr__(self) -> str:
        return f"<Partition on {self.total} decisions of {len(self.decisions)} replicas>"

    def _count(self, replica: ReplicaId, row: Row) -> None:
        events = _events(row.payload)
        cursors = [_cursor(event) for event in events if event.type in _ROUTED]
        self.refusals += sum(event.type == _REJECTED for event in events)
        self.decisions[replica] += len(cursors)
        if cursors:
            self._seqs.append(row.seq)
            self._counts.append(len(cursors))
        self.whole = self.whole and all(map(self._covers, cursors))

    def _covers(self, cursor: dict[StreamName, tuple[int, int]] | None) -> bool:
        spans = self.recording.archive.contents.streams
        return cursor is not None and all(
            stream in spans and spans[stream].epoch == epoch and seq <= spans[stream].last_seq
            for stream, (epoch, seq) in cursor.items()
        )

    @property
    def total(self) -> int:
        """Decisions that were routed in the range."""
        return sum(self.decisions.values())

    def shares(self, jobs: int, *, proves: bool = False) -> list[LogShare]:
        """So many shares of the log, which take about as long each; fewer if there are too few decisions. `proves`: the
        process of the first one proves the chains before it."""
        many = max(1, min(jobs if self.whole else 1, self.total // SHARE_MIN))
        proof = PROOF_FOLDS * self._fold_share * self.recording.archive.messages if proves else 0.0
        bounds = [self._start, *(self._bounds(many, proof) if many > 1 else []), self._end]
        numbers = self._numbers([bound for bound in bounds[:-1] if bound is not None])
        return [
            LogShare(start or 1, end, self._only, numbers[start or 1], self._gaps) for start, end in pairwise(bounds)
        ]

    def _bounds(self, parts: int, proof: float) -> list[int]:
        """The starts of all shares but the first. A later share has more to fold first, so it has fewer decisions.
        `proof` is the time before the first, in decisions."""
        done = [0, *accumulate(self._counts)]
        low, high = 0.0, self.total + proof
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if self._cut(done, middle, parts, proof) is None:
                low = middle
            else:
                high = middle
        return self._cut(done, high, parts, proof) or []

    def _cut(self, done: list[int], each: float, parts: int, proof: float) -> list[int] | None:
        """The beginnings if every part takes as long as so many decisions; None if that is too little for all."""
        found, reached = list[int](), max(0.0, each - self._to_fold(0) - proof)
        for _ in range(parts - 1):
            at = bisect_left(done, reached)
            if at >= len(self._seqs):
                return found
            found.append(self._seqs[at])
            reached = done[at] + max(0.0, each - self._to_fold(at))
        return found if reached >= self.total else None

    def _to_fold(self, at: int) -> float:
        """The time to fold up to that message, in decisions."""
        return self._fold_share * self.recording.to_fold(self._cursor(at))

    def _cursor(self, at: int) -> Cursor:
        """The cursor of the first decision in that message; empty if it cannot be read."""
        record = self.recording.archive.at(ROUTING, self._seqs[at])
        message = self.recording.frame(record).message if record is not None else None
        for event in message.events if message is not None else ():
            if isinstance(event, RequestRouted):
                return {StreamName(stream): StreamSeq(seq) for stream, (_, seq) in event.cursor.items()}
        return {}

    def _numbers(self, starts: list[int]) -> dict[int, dict[ReplicaId, int]]:
        """At each of these places the number of every replica's next message."""
        found: dict[int, dict[ReplicaId, int]] = {}
        numbers: dict[ReplicaId, int] = {}
        waiting = deque(starts)
        for row in self.recording.archive.rows(ROUTING, 1, starts[-1]):
            while row.seq >= waiting[0]:
                found[waiting.popleft()] = dict(numbers)
            message, replica = envelope(row.payload), ReplicaId(owner(row.owner))
            if message is not None and message.source == replica:
                numbers[replica] = max(message.n + 1, numbers.get(replica, 0))
        found.update(dict.fromkeys(waiting, numbers))
        return found


def _is_cut(recording: Recording) -> bool:
    """True if the log had lost its start and no snapshot stands at the start of the recording."""
    start = recording.start
    based = (
        all(at.seq <= start.get(StreamName(stream), -1) for stream, at in manifest.cursor.items())
        for manifest in recording.archive.snapshots()
        if not manifest.why_no_start
    )
    return any(start.values()) and not any(based)


class _Event(msgspec.Struct):
    type: str
    cursor: dict[StreamName, tuple[int, int]] | None = None
    d: _Values | None = None  # type: ignore[valid-type]
    """Of a compact decision."""


class _Message(msgspec.Struct):
    """All fields of an envelope: what lacks one is no message, and has no decisions."""

    v: int
    source: str
    n: int
    prev: bytes
    sent_ms: int
    events: list[_Event]


_message = msgspec.msgpack.Decoder(_Message)


def _cursor(event: _Event) -> dict[StreamName, tuple[int, int]] | None:
    """The cursor of a decision, if it could be read."""
    return event.cursor if event.d is None else cursor_of(event.d.cursor)


def _events(payload: bytes) -> list[_Event]:
    """Those of a message, with the cursors of decisions; without them where something else goes by that name."""
    try:
        return _message.decode(payload).events
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        message = envelope(payload)
        return [_Event(event.type) for event in message.events] if message is not None else []
