"""A second count of cache losses, written for clarity alone: each worker's set of blocks after each message.

It shares nothing with `replay.cache` but the names of the causes, and takes the definition word by word.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from core.events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheRestated,
    LoadReported,
    LocalChanged,
    PromptBase,
    ReplicaRestated,
    RequestFinished,
    RequestPrefilled,
    RequestRouted,
    WorkerJoined,
    WorkerLeft,
    WorkerLost,
)
from core.prompt import hashes_from_bytes
from core.subjects import LOAD, ROUTING
from replay.recording.recording import RecordedFrame, Recording
from tests.replay.staged import KV

BARRING = {"not_connected", "suspected", "failed"}


class Served(NamedTuple):
    """One attempt with a first token, and the number of its blocks by cause."""

    event: RequestRouted
    seq: int
    blocks: Counter[str]


class NaiveCount:
    """Of a recording with one kv stream and one tier, without gaps."""

    def __init__(self, recording: Recording) -> None:
        self._caches: list[dict[str, frozenset[int]]] = [{}]
        """After so many messages: the blocks of each worker that is alive."""
        self._joined: dict[str, WorkerJoined] = {}
        self._stored: dict[int, list[int]] = defaultdict(list)
        """By block, the messages that store it …"""
        self._gone: dict[int, list[tuple[int, str]]] = defaultdict(list)
        """… and those that end a copy of it, with the cause."""
        self._kv_ms: list[int] = []
        self._draining: list[tuple[int, str, bool]] = []
        for frame in recording.frames(KV):
            self._fold(frame.seq, frame.owner, list(frame.message.events if frame.message else ()))
            self._kv_ms.append(max([frame.time_ms, *self._kv_ms[-1:]]))
        for frame in recording.frames(LOAD):
            for event in frame.message.events if frame.message else ():
                if isinstance(event, LoadReported):
                    self._draining.append((frame.seq, frame.owner, event.draining))
        self.served: list[Served] = []
        self.declined = 0
        self._count(recording)

    def _fold(self, seq: int, worker: str, events: list[object]) -> None:
        caches = dict(self._caches[-1])
        parts: set[int] = set()
        for event in events:
            before = caches.get(worker, frozenset())
            after, how = before, "evicted"
            match event:
                case WorkerJoined():
                    self._joined[worker] = event
                case BlocksStored():
                    assert event.tier == "device"
                    blocks = hashes_from_bytes(event.hashes)
                    for block in blocks:
                        self._stored[block].append(seq)
                    after = before | {*blocks}
                case BlocksRemoved():
                    after = before - {*hashes_from_bytes(event.hashes)}
                case CacheCleared():
                    after = frozenset()
                case CacheRestated():
                    assert event.parts == 1
                    parts = {*hashes_from_bytes(event.hashes)}
                    for block in parts - before:
                        self._stored[block].append(seq)
                    after = frozenset(parts)
                case WorkerLeft() | WorkerLost():
                    after, how = frozenset(), "worker_lost"
            for block in before - after:
                self._gone[block].append((seq, how))
            caches[worker] = after
            if how == "worker_lost":
                del caches[worker]
        self._caches.append(caches)

    def _count(self, recording: Recording) -> None:
        frames = list(recording.frames(ROUTING))
        first_tokens, declined = _outcomes(frames)
        columns: dict[tuple[int, int], bytes] = {}
        local: dict[str, dict[str, set[str]]] = defaultdict(dict)
        asked: set[int] = set()
        place = now_ms = 0
        for frame in frames:
            now_ms = max(now_ms, frame.time_ms)
            for number, event in enumerate(frame.message.events if frame.message else ()):
                if isinstance(event, LocalChanged):
                    local[frame.owner][event.worker] = {*event.reasons}
                elif isinstance(event, ReplicaRestated):
                    local[frame.owner].clear()
                if not isinstance(event, RequestRouted):
                    continue
                column = event.hashes
                if isinstance(event.base, PromptBase):
                    column = columns[event.base.decision][: 8 * event.base.blocks] + column
                columns[frame.seq, number] = column
                hashes = hashes_from_bytes(column)
                place = max(
                    place,
                    event.cursor[KV][1] if KV in event.cursor else 0,
                    sum(each < now_ms for each in self._kv_ms),
                )
                key = event.request, event.attempt
                if key in first_tokens:
                    barred = {worker for worker, reasons in local[frame.owner].items() if reasons & BARRING}
                    causes = self._causes(event, hashes, first_tokens[key], barred, place, asked)
                    self.served.append(Served(event, frame.seq, causes))
                if key in declined:
                    self.declined += 1
                else:
                    asked |= {*hashes}

    def _causes(
        self, event: RequestRouted, hashes: list[int], cached: int, barred: set[str], place: int, asked: set[int]
    ) -> Counter[str]:
        """The number of blocks by cause; tokens that no block gives are `always_computed`, in tokens."""
        size = event.block_size
        reusable = (event.prompt_tokens - 1) // size
        at = event.cursor[KV][1] if KV in event.cursor else 0
        read = event.cursor[LOAD][1] if LOAD in event.cursor else 0
        draining = {worker: is_draining for seq, worker, is_draining in self._draining if seq <= read}
        found = Counter({"always_computed": event.prompt_tokens - size * reusable})
        for number, block in enumerate(hashes[:reusable]):
            if number < cached // size:
                found["achieved"] += 1
                continue
            holders = {worker for worker, blocks in self._caches[at].items() if block in blocks}
            holders = {worker for worker in holders if self._joined[worker].model == event.model}
            if event.worker in holders:
                found["evicted"] += 1
            elif any(worker not in barred and not draining.get(worker) for worker in holders):
                found["sent_elsewhere"] += 1
            elif holders:
                found["worker_lost"] += 1
            elif any(at < seq <= place for seq in self._stored[block]):
                found["replica_behind"] += 1
            elif gone := [how for seq, how in self._gone[block] if seq <= at]:
                found[gone[-1]] += 1
            elif block in asked:
                found["not_yet_stored"] += 1
            else:
                found["cold"] += 1
        return found

    def tokens(self) -> Counter[str]:
        """All sums, in tokens."""
        found: Counter[str] = Counter()
        for each in self.served:
            found += tokens_of(each)
        return found

    def by_session(self) -> dict[str, Counter[str]]:
        """The same by the session that clients named."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for each in self.served:
            found[each.event.session] += tokens_of(each)
        return dict(found)


def _outcomes(frames: list[RecordedFrame]) -> tuple[dict[tuple[str, int], int], set[tuple[str, int]]]:
    """The cached tokens of each attempt with a first token, and the attempts that were declined."""
    first_tokens: dict[tuple[str, int], int] = {}
    declined: set[tuple[str, int]] = set()
    for frame in frames:
        for event in frame.message.events if frame.message else ():
            if isinstance(event, RequestPrefilled):
                first_tokens[event.request, event.attempt] = event.cached_tokens
            elif isinstance(event, RequestFinished) and event.outcome == "declined":
                declined.add((event.request, event.attempt))
    return first_tokens, declined


def tokens_of(it: Served) -> Counter[str]:
    """Blocks as tokens; all of them are the prompt."""
    size = it.event.block_size
    found = Counter({name: count * (1 if name == "always_computed" else size) for name, count in it.blocks.items()})
    assert sum(found.values()) == it.event.prompt_tokens
    return +found
