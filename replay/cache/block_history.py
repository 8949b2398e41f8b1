"""BlockHistory: for every block that is in no cache any more, how its last copy went; and which blocks were asked for.

The kv streams are folded in the order of time, up to the place of a decision. A replica decides at an earlier place:
its cursor. So the changes behind the earliest cursor that is still to come are kept one by one, and a question about a
cursor takes them back.

A block that a cache holds costs some 70 bytes a copy. One that is gone, or was asked for and never stored, is
an entry of a dictionary from integer to small integer: 90 to 105 bytes. Beyond `BLOCKS_MAX` of these the ones that went
first are forgotten, and counted.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import islice, repeat
from typing import NamedTuple

from core.ids import StreamName, WorkerId
from core.subjects import is_kv
from projections.digest import mix
from projections.folds.kv_fold import KvFold
from replay.cache.copy_fold import (
    CLEARED,
    LOST,
    REMOVED,
    UNKNOWN,
    CacheScope,
    Copies,
    CopyFold,
    CopyObserver,
    CopyObservers,
    WorkerCaches,
)
from replay.recording.recording import RecordedFrame, Recording

BLOCKS_MAX = 4_000_000
"""Blocks that are gone or were asked for and never stored. All answers are exact up to so many."""
FORGOTTEN_SHARE = 16
"""One of so many parts of the bound is forgotten at once: a dictionary is slow to give its first entries one by one."""


class Cause(IntEnum):
    """The reason why a block of a prompt was computed, in the order of precedence."""

    ELSEWHERE = 0
    """A worker that could have taken the request held it."""
    BEHIND = 1
    """The log had its store, and the replica had not read that."""
    EVICTED = 2
    """The copy that went last was removed by its worker."""
    LOST = 3
    """The copy that went last ended with its worker."""
    UNKNOWN = 4
    """Messages of the worker with the copy that went last are missing."""
    NOT_YET = 5
    """It was never stored, and an earlier request had it."""
    COLD = 6
    """No earlier request had it."""


CAUSES = tuple(Cause)
"""By their values."""
GONE = {REMOVED: Cause.EVICTED, CLEARED: Cause.EVICTED, LOST: Cause.LOST, UNKNOWN: Cause.UNKNOWN}
"""By the way in which a copy went."""
NONE = -1
"""No copy has gone."""


class _Change(NamedTuple):
    """Copies of blocks that came or went by one event behind the earliest cursor."""

    stream: int
    seq: int
    is_store: bool
    blocks: Sequence[int]
    """Keys."""
    before: list[int]
    """Of each of them, the cause of the copy that had gone last before; NONE for none."""


class BlockHistory:
    """A `CopyObserver` of all kv streams of a log. Kv streams have numbers, from 0."""

    def __init__(self, streams: int, blocks_max: int = BLOCKS_MAX) -> None:
        self.caches = WorkerCaches()
        """The caches at the place of the fold."""
        self.at = [0] * streams
        """The last message of each kv stream that is folded, or is being folded."""
        self.floor = [0] * streams
        """No question comes about a cursor before these places."""
        self.forgotten = 0
        """Blocks that were forgotten."""
        self._blocks_max = blocks_max
        self._stream = 0
        self._gone: dict[int, int] = {}
        """By key of a block, the cause of the copy that went last, oldest first. A block that is stored again is not
        here."""
        self._asked: dict[int, None] = {}
        """Blocks that were asked for and never stored, oldest first."""
        self._recent: deque[_Change] = deque()
        """Changes behind the earliest cursor, in their order."""
        self._workers: dict[CacheScope, list[WorkerId]] = {}
        """Those that have joined."""
        self._scopes: dict[CacheScope, int] = {}

    def __repr__(self) -> str:
        return (
            f"<BlockHistory: {len(self._gone)} blocks gone, {len(self._asked)} in progress, {self.forgotten} forgotten>"
        )

    def __len__(self) -> int:
        """The number of blocks that are gone, or were asked for and never stored."""
        return len(self._gone) + len(self._asked)

    # --- the fold ------------------------------------------------------------------------------------------------

    def enter(self, stream: int, seq: int, time_ms: int = 0) -> None:  # noqa: ARG002 - of the protocol
        """Changes that are reported from now on stand in this message; its time does not count."""
        self._stream, self.at[stream] = stream, seq

    def settle(self, floor: Sequence[int]) -> None:
        """No question comes any more about a cursor before these places."""
        self.floor[:] = floor
        recent = self._recent
        while recent and recent[0].seq <= floor[recent[0].stream]:
            recent.popleft()

    def on_joined(self, worker: WorkerId, scope: CacheScope) -> None:
        """The worker has a cache of this scope."""
        for workers in self._workers.values():
            if worker in workers:
                workers.remove(worker)
        self._workers.setdefault(scope, []).append(worker)

    def on_stored(self, copies: Copies) -> None:
        """These blocks have one more copy."""
        keys = self._keys(copies.scope, copies.blocks)
        self._take_asked(keys)
        self._note(keys, self._take_gone(keys), is_store=True)

    def on_gone(self, copies: Copies, how: str) -> None:
        """One copy of each of these blocks went."""
        keys = self._keys(copies.scope, copies.blocks)
        self._take_asked(keys)
        before = self._take_gone(keys)
        self._gone.update(dict.fromkeys(keys, int(GONE[how])))  # the newest stand last
        self._note(keys, before, is_store=False)
        self._forget()

    def ask(self, scope: CacheScope, hashes: bytes) -> None:
        """A request asks for the prompt with these block hashes. O(blocks that are not stored and not known yet)."""
        column = array("Q", hashes).tolist()
        behind = column[self.caches.depth(self._workers.get(scope, ()), column) :]
        behind.reverse()
        asked, gone, news = self._asked, self._gone, list[int]()
        for key in self._keys(scope, behind):
            if key in asked or key in gone:
                break  # a known block has known blocks before it
            news.append(key)
        asked.update(dict.fromkeys(reversed(news)))
        self._forget()

    # --- answers -------------------------------------------------------------------------------------------------

    def causes(self, scope: CacheScope, hashes: bytes, cursor: Sequence[int]) -> list[Cause]:
        """The cause of each of these blocks, in no cache at the cursor, where the log stands at `at`. `cursor` has the
        last message of each kv stream that the replica had read. Some 0.1 us each, and 0.5 us per event behind the
        earliest cursor that is still to come."""
        gone, asked = self._gone.get, self._asked
        keys = self._keys(scope, array("Q", hashes).tolist())
        taken_back, stored = self._taken_back(keys, cursor)
        found = []
        for key in keys:
            if key in stored:
                found.append(Cause.BEHIND)
                continue
            cause = taken_back[key] if key in taken_back else gone(key, NONE)
            found.append(CAUSES[cause] if cause != NONE else Cause.NOT_YET if key in asked else Cause.COLD)
        return found

    def _taken_back(self, keys: Sequence[int], cursor: Sequence[int]) -> tuple[dict[int, int], set[int]]:
        """The causes of the copies that had gone last at the cursor, of blocks with changes behind it, and the blocks
        with a store behind it."""
        causes, stored, reached = dict[int, int](), set[int](), set[int]()
        questioned = set(keys)
        for change in reversed(self._recent):
            if questioned.isdisjoint(change.blocks):
                continue
            if change.seq <= cursor[change.stream]:
                reached.update(change.blocks)
                continue
            if change.is_store:
                stored.update(change.blocks)
            for key, before in zip(reversed(change.blocks), reversed(change.before), strict=True):
                if key not in reached:
                    causes[key] = before
        return causes, stored

    # -----------------------------------------------------------------------------------------------------------

    def _take_asked(self, keys: Sequence[int]) -> None:
        """None of these is only asked for any more. The deque throws the results away: a loop takes three times as
        long."""
        deque(map(self._asked.pop, keys, repeat(None)), 0)

    def _take_gone(self, keys: Sequence[int]) -> list[int]:
        """None of these is gone any more; gives the cause that each one had, or NONE."""
        return list(map(self._gone.pop, keys, repeat(NONE)))

    def _note(self, keys: Sequence[int], before: list[int], *, is_store: bool) -> None:
        """The change can be taken back, unless every cursor to come covers its message."""
        stream = self._stream
        seq = self.at[stream]
        if seq > self.floor[stream]:
            self._recent.append(_Change(stream, seq, is_store, keys, before))

    def _keys(self, scope: CacheScope, blocks: Sequence[int]) -> Sequence[int]:
        """The blocks as keys: hashes in the first scope, and mixed with the scope in all others."""
        factor = self._scopes.get(scope)
        if factor is None:
            factor = self._scopes[scope] = mix(*scope) if self._scopes else 0
        return list(map(factor.__xor__, blocks)) if factor else blocks

    def _forget(self) -> None:
        """The tables are within the bound: blocks that went first are forgotten, then those asked for first."""
        while (over := len(self) - self._blocks_max) > 0:
            table = self._gone or self._asked
            oldest = list(islice(table, max(over, self._blocks_max // FORGOTTEN_SHARE, 1)))
            for key in oldest:
                del table[key]
            self.forgotten += len(oldest)


class HistoryReader:
    """Folds the kv streams of a recording into a `BlockHistory`, in the order of time."""

    def __init__(
        self,
        recording: Recording,
        history: BlockHistory,
        streams: Sequence[StreamName],
        others: Sequence[CopyObserver] = (),
    ) -> None:
        """From the recording's start on: blocks of a snapshot there are stored. The others get each change behind the
        history."""
        base = recording.state_before(recording.start)
        history.caches.load(base.index)
        self._observer: CopyObserver = CopyObservers([history, *others]) if others else history
        self._streams = [
            _StreamReader(recording, stream, number, _copy_fold(base.kv.get(stream), history.caches, self._observer))
            for number, stream in enumerate(streams)
        ]
        for each in self._streams:
            history.at[each.number] = base.cursor[each.stream].seq if each.stream in base.cursor else 0
            each.begin(history.at[each.number])

    def __repr__(self) -> str:
        return f"<HistoryReader of {len(self._streams)} kv streams>"

    def move(self, time_ms: int, cursor: Sequence[int]) -> None:
        """Folded is each message that the log stored before that time, and each that the cursor covers."""
        while True:
            due = [each for each in self._streams if each.is_due(time_ms, cursor)]
            if not due:
                return
            first = min(due, key=lambda each: each.next_ms) if len(due) > 1 else due[0]
            first.fold(self._observer)


class _StreamReader:
    """One kv stream, read message by message."""

    def __init__(self, recording: Recording, stream: StreamName, number: int, fold: CopyFold) -> None:
        self.stream = stream
        self.number = number
        self._recording = recording
        self._fold = fold
        self._frames: Iterator[RecordedFrame] = iter(())
        self._next: RecordedFrame | None = None
        self.next_ms = 0
        """The time of the next message, never before that of an earlier one: a log's clock may go back."""

    def begin(self, seq: int) -> None:
        """The message behind that sequence is the next one."""
        self._frames = self._recording.frames(self.stream, seq + 1)
        self._step()

    def is_due(self, time_ms: int, cursor: Sequence[int]) -> bool:
        """True if the next message lies before that time, or is covered by the cursor."""
        return self._next is not None and (self.next_ms < time_ms or self._next.seq <= cursor[self.number])

    def fold(self, observer: CopyObserver) -> None:
        """The next message is folded."""
        frame = self._next
        assert frame is not None
        observer.enter(self.number, frame.seq, self.next_ms)
        if frame.message is not None:
            self._fold.apply(frame.owner, frame.message, frame.head)
            self._fold.missing.clear()
        self._step()

    def _step(self) -> None:
        self._next = next(self._frames, None)
        if self._next is not None:
            self.next_ms = max(self.next_ms, self._next.time_ms)


def _copy_fold(base: KvFold | None, caches: WorkerCaches, observer: CopyObserver) -> CopyFold:
    """A fold that goes on from this one."""
    fold = CopyFold(caches, observer)
    if base is not None:
        fold.ended.update(base.ended)
        for member in base.members.values():
            fold.restore(member)
            if member.joined is not None:
                observer.on_joined(member.worker, (member.joined.model, member.joined.block_size))
    return fold


def kv_streams(recording: Recording) -> list[StreamName]:
    """The kv streams of the recording; a stream's place is its number."""
    return [stream for stream in recording.streams if is_kv(stream)]
