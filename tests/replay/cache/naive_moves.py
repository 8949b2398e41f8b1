"""A second reading of a log for the users of cached blocks and the room of removed ones, written for clarity alone.

It shares nothing with `replay.cache`. All that happened stands in one list; each answer walks it backward.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from copy import copy
from typing import NamedTuple

from core.events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheRestated,
    PromptBase,
    RequestFinished,
    RequestPrefilled,
    RequestRouted,
    WorkerLeft,
    WorkerLost,
)
from core.prompt import hashes_from_bytes
from core.subjects import ROUTING
from replay.recording.recording import Recording
from tests.replay.staged import KV

Key = tuple[str, int]
"""A request and its attempt."""


class Move(NamedTuple):
    """One step: a prompt that was sent, or blocks that were stored or went."""

    what: str
    """`sent`, `stored`, `removed`, `cleared` (or restated without them), `lost`."""
    seq: int
    """In the kv stream; 0 for a decision."""
    ms: int
    worker: str
    blocks: list[int]
    parent: int | None = None
    key: Key = ("", -1)
    chained: bool = True


class NaiveMoves:
    """Of a recording with one kv stream and one tier, without gaps. A kv message stands before a decision if it has an
    earlier millisecond, or if a decision up to this one had read it."""

    def __init__(self, recording: Recording, *, whole: bool = False) -> None:
        """Up to the last decision, or the whole log."""
        self.moves: list[Move] = []
        self.ended_ms: dict[Key, int] = {}
        self.token_ms: dict[Key, int] = {}
        self.events: dict[Key, RequestRouted] = {}
        self._caches: dict[str, set[int]] = defaultdict(set)
        kv = deque(recording.frames(KV))
        kv_ms = now_ms = 0
        frames = list(recording.frames(ROUTING))
        declined = set[Key]()
        for frame in frames:
            for event in frame.message.events if frame.message else ():
                if isinstance(event, RequestPrefilled):
                    self.token_ms[event.request, event.attempt] = frame.time_ms
                if isinstance(event, RequestFinished):
                    self.ended_ms[event.request, event.attempt] = frame.time_ms
                    if event.outcome == "declined":
                        declined.add((event.request, event.attempt))
        columns: dict[tuple[int, int], bytes] = {}
        for frame in frames:
            now_ms = max(now_ms, frame.time_ms)
            for number, event in enumerate(frame.message.events if frame.message else ()):
                if not isinstance(event, RequestRouted):
                    continue
                column = event.hashes
                if isinstance(event.base, PromptBase):
                    column = columns[event.base.decision][: 8 * event.base.blocks] + column
                columns[frame.seq, number] = column
                read = event.cursor[KV][1] if KV in event.cursor else 0
                while kv and (max(kv_ms, kv[0].time_ms) < now_ms or kv[0].seq <= read):
                    kv_ms = max(kv_ms, kv[0].time_ms)
                    self._kv(kv[0].seq, kv_ms, kv[0].owner, kv.popleft().message.events)  # type: ignore[union-attr]
                key = event.request, event.attempt
                self.events[key] = event
                if key not in declined:
                    self.moves.append(Move("sent", 0, now_ms, event.worker, hashes_from_bytes(column), None, key))
        for frame in kv if whole else ():
            kv_ms = max(kv_ms, frame.time_ms)
            self._kv(frame.seq, kv_ms, frame.owner, frame.message.events)  # type: ignore[union-attr]
        self.takers: dict[tuple[int, int], tuple[int, int]] = {}

    def _kv(self, seq: int, ms: int, worker: str, events: object) -> None:
        cache = self._caches[worker]
        for event in events:  # type: ignore[attr-defined]
            match event:
                case BlocksStored():
                    blocks = hashes_from_bytes(event.hashes)
                    self.moves.append(Move("stored", seq, ms, worker, blocks, event.parent))
                    cache.update(blocks)
                case BlocksRemoved():
                    blocks = hashes_from_bytes(event.hashes)
                    self.moves.append(Move("removed", seq, ms, worker, blocks))
                    cache.difference_update(blocks)
                case CacheCleared():
                    self._whole("cleared", seq, ms, worker, set())
                case CacheRestated():
                    assert event.parts == 1
                    self._whole("cleared", seq, ms, worker, {*hashes_from_bytes(event.hashes)})
                case WorkerLeft() | WorkerLost():
                    self._whole("lost", seq, ms, worker, set())

    def _whole(self, how: str, seq: int, ms: int, worker: str, after: set[int]) -> None:
        before = self._caches[worker]
        if gone := sorted(before - after):
            self.moves.append(Move(how, seq, ms, worker, gone))
        if new := sorted(after - before):
            self.moves.append(Move("stored", seq, ms, worker, new, chained=False))
        self._caches[worker] = after

    def user(self, at: int, worker: str, block: int) -> Key | None:
        """The request that used the block there last, up to the move of this number: the last one that was sent there
        with it since it was removed there, or that waited for its first token then; else the user of the block before
        it, when it was stored."""
        stored: tuple[int, int | None] | None = None
        gone_ms: list[int] = []
        for number in range(at, -1, -1):
            move = self.moves[number]
            if move.worker != worker or (block not in move.blocks and move.what != "lost"):
                continue
            if move.what == "sent":
                if all(not 0 < self.token_ms.get(move.key, 0) < ms for ms in gone_ms):
                    return move.key
                break
            if move.what == "lost":
                break
            if move.what != "stored":
                gone_ms.append(move.ms)
            elif not gone_ms and move.chained:
                place = move.blocks.index(block)
                stored = number, move.blocks[place - 1] if place else move.parent
        if stored is None or stored[1] is None:
            return None
        return self.user(stored[0], worker, stored[1])

    def room(self) -> list[tuple[int, int, Key | None]]:
        """Each block that a worker removed: the move, the block, and its user. `taker` is known from now on."""
        takers: dict[tuple[int, int], tuple[int, int]] = {}
        empty: dict[str, list[tuple[int, int]]] = defaultdict(list)
        removed: list[tuple[int, int]] = []
        for number, move in enumerate(self.moves):
            if move.what == "removed":
                removed += [(number, block) for block in move.blocks]
                empty[move.worker] += [(number, block) for block in move.blocks]
            elif move.what == "stored" and move.chained:
                for block in move.blocks:
                    if empty[move.worker]:
                        takers[empty[move.worker].pop(0)] = number, block
            elif move.what in {"cleared", "lost"}:
                empty[move.worker] = []
        self.takers = takers
        return [(number, block, self.user(number - 1, self.moves[number].worker, block)) for number, block in removed]

    def taker(self, number: int, block: int) -> Key | None:
        """The user of the block that took the room of the block that this move removed; after `room`."""
        at, stored = self.takers.get((number, block), (-1, 0))
        return self.user(at, self.moves[number].worker, stored) if at >= 0 else None

    def at(self, key: Key, until_ms: int) -> NaiveMoves:
        """The same log as it stood at that decision, with the blocks that came and went up to that time."""
        place = next(number for number, move in enumerate(self.moves) if move.key == key)
        behind = [move for move in self.moves[place:] if move.what != "sent" and move.ms <= until_ms]
        other = copy(self)
        other.moves = self.moves[:place] + behind
        other.room()
        return other

    def displaced(self, group: dict[Key, str], size: int) -> dict[str, Counter[str]]:
        """By group: the tokens that it lost to others, to its own and to unknown, and those that it took."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for number, block, loser in self.room():
            taker = self.taker(number, block)
            if loser is not None and taker is not None:
                if group[loser] == group[taker]:
                    found[group[loser]]["lost_to_own"] += size
                else:
                    found[group[loser]]["lost_to_others"] += size
                    found[group[taker]]["took_from_others"] += size
            elif loser is not None:
                found[group[loser]]["lost_to_unknown"] += size
            elif taker is not None:
                found[group[taker]]["took_from_unknown"] += size
        return found
