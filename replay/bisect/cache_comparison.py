"""CacheComparison: the index and the engine's cache at each restatement of a cache.

The events of a worker are applied here store by store, without regard to gaps. So where index and cache differ, the
blocks show the missing event, and the chain shows a missing message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from core.errors import CallerError
from core.event_json import hash_text
from core.events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheRestated,
    Event,
    PoolJoined,
    UnknownEvent,
    WorkerJoined,
)
from core.ids import StreamName, WorkerId
from core.prompt import hashes_from_bytes
from core.subjects import is_kv
from projections.folds.source_fold import Chain, ChainVerdict, missing_before
from replay.recording.recording import RecordedFrame, Recording

BLOCKS_SHOWN = 8


class BlockEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The last event about a block."""

    seq: int
    n: int
    event: str
    time_ms: int


class StrayBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of one tier that one side had and the other had not, by the last event about them."""

    tier: str
    blocks: int
    hashes: list[str]
    """The first BLOCKS_SHOWN of them."""
    said: BlockEvent | None
    """None if no event of the recording is about them."""


class Restatement(msgspec.Struct, frozen=True, kw_only=True):
    """One restatement of the cache, beside the events before it."""

    seq: int
    """Of its last part."""
    time_ms: int
    blocks: int
    """That the cache holds."""
    index_known: bool
    """A fold knew the cache until then; not so after a gap."""
    gaps: list[str]
    """Messages of the worker that are missing since the restatement before."""
    missed_removals: list[StrayBlocks]
    """The index had them, or would have had them, and the cache had not."""
    missed_stores: list[StrayBlocks]
    """The cache had them, and no event says so."""

    @property
    def differs(self) -> bool:
        """The index and the cache differ."""
        return bool(self.missed_removals or self.missed_stores)


class CacheComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One life of a worker."""

    worker: str
    name: str
    stream: str
    restatements: list[Restatement]
    gaps: list[str]
    """Messages missing behind the last restatement."""

    @property
    def first(self) -> Restatement | None:
        """The first restatement at which something was missed; None if nothing was."""
        return next((each for each in self.restatements if each.differs), None)


def compare_cache(
    recording: Recording,
    worker: str,
    start: Mapping[StreamName, int] | None = None,
    end: Mapping[StreamName, int] | None = None,
) -> list[CacheComparison]:
    """Every life of the worker of that name or id; of its restatements, those from `start` up to `end` (not included)
    of its stream. CallerError if it is not known."""
    found = []
    for life in sorted(recording.names.workers_called(worker)):
        for stream in filter(is_kv, recording.streams):
            reported = _ReportedCache(life, stream)
            restated = [
                each for frame in recording.frames(stream) if frame.owner == life for each in reported.read(frame)
            ]
            first, last = (start or {}).get(stream, 1), (end or {}).get(stream, recording.end[stream] + 1)
            if reported.seen:
                found.append(
                    CacheComparison(
                        worker=life,
                        name=recording.names.worker(life),
                        stream=stream,
                        restatements=[each for each in restated if first <= each.seq < last],
                        gaps=reported.gaps,
                    )
                )
    if not found:
        raise CallerError(f"nothing in this recording was said by worker {worker!r}")
    return found


class _ReportedCache:
    """Contents of the worker's cache by its own events, gaps or not."""

    def __init__(self, worker: WorkerId, stream: StreamName) -> None:
        self.gaps: list[str] = []
        """Since the last restatement."""
        self.seen = False
        self._worker, self._stream = worker, stream
        self._chain = Chain()
        self._held: dict[str, dict[int, BlockEvent]] = {}
        self._gone: dict[str, dict[int, BlockEvent]] = {}
        self._parts: list[CacheRestated] = []
        self._joined = False
        self._known = True

    def read(self, frame: RecordedFrame) -> Iterator[Restatement]:
        """The restatements that the message completes."""
        message = frame.message
        if message is None or str(message.source) != self._worker:
            return
        self.seen = True
        n_next, link = self._chain.n_next, self._chain.follow(message, frame.head)
        if link is ChainVerdict.REPEAT:
            return
        if link is ChainVerdict.GAP:
            self._lose(n_next, frame)
        for event in message.events:
            last_event = BlockEvent(seq=frame.seq, n=message.n, event=type(event).__name__, time_ms=frame.time_ms)
            if isinstance(event, CacheRestated):
                if self._add_part(event):
                    yield self._restated(frame, last_event)
            else:
                self._apply(event, last_event)

    def _apply(self, event: Event | UnknownEvent, last_event: BlockEvent) -> None:
        match event:
            case WorkerJoined() | PoolJoined():
                self._joined = True
            case BlocksStored(hashes=column, tier=tier):
                self._note(tier, hashes_from_bytes(column), last_event, held=True)
            case BlocksRemoved(hashes=column, tier=tier):
                self._note(tier, hashes_from_bytes(column), last_event, held=False)
            case CacheCleared():
                for tier, blocks in self._held.items():
                    self._gone.setdefault(tier, {}).update(dict.fromkeys(blocks, last_event))
                self._held.clear()
            case _:
                pass  # says nothing of blocks

    def _lose(self, n_next: int, frame: RecordedFrame) -> None:
        assert frame.message is not None
        if not n_next and not frame.message.n:
            return
        lost = missing_before(n_next, frame.message)
        self._known, self._parts = False, []
        numbers = f"message {lost.n_to}" if lost.n_to == lost.n_from else f"messages {lost.n_from} to {lost.n_to}"
        self.gaps.append(f"{numbers} before {self._stream}:{frame.seq}")

    def _note(self, tier: str, blocks: list[int], last_event: BlockEvent, *, held: bool) -> None:
        there, gone = self._held.setdefault(tier, {}), self._gone.setdefault(tier, {})
        for block in blocks:
            (gone if held else there).pop(block, None)
            (there if held else gone)[block] = last_event

    def _add_part(self, event: CacheRestated) -> bool:
        """As a fold does it: an interrupted restatement is void."""
        if event.part != len(self._parts):
            self._parts = []
        if event.part == len(self._parts):
            self._parts.append(event)
        return bool(self._parts) and len(self._parts) == event.parts and (self._known or self._joined)

    def _restated(self, frame: RecordedFrame, last_event: BlockEvent) -> Restatement:
        cache: dict[str, set[int]] = {}
        for part in self._parts:
            cache.setdefault(part.tier, set()).update(hashes_from_bytes(part.hashes))
        tiers = sorted(cache.keys() | self._held.keys())
        removals = [s for tier in tiers for s in self._strays(tier, self._held, cache.get(tier, set()), self._held)]
        stores = [s for tier in tiers for s in self._strays(tier, cache, set(self._held.get(tier, ())), self._gone)]
        found = Restatement(
            seq=frame.seq,
            time_ms=frame.time_ms,
            blocks=sum(map(len, cache.values())),
            index_known=self._known,
            gaps=self.gaps,
            missed_removals=removals,
            missed_stores=stores,
        )
        self._held = {tier: dict.fromkeys(blocks, last_event) for tier, blocks in cache.items()}
        self._gone, self._parts, self.gaps, self._known = {}, [], [], True
        return found

    def _strays(
        self,
        tier: str,
        one: dict[str, dict[int, BlockEvent]] | dict[str, set[int]],
        other: set[int],
        last_events: dict[str, dict[int, BlockEvent]],
    ) -> Iterator[StrayBlocks]:
        """Blocks that `one` has and `other` has not, by the last event about them; the earliest first."""
        strays = sorted(set(one.get(tier, ())) - other)
        events = last_events.get(tier, {})
        by_event: dict[BlockEvent | None, list[int]] = {}
        for block in strays:
            by_event.setdefault(events.get(block), []).append(block)
        for last_event, blocks in sorted(by_event.items(), key=lambda it: it[0].seq if it[0] is not None else 0):
            shown = [hash_text(block) for block in blocks[:BLOCKS_SHOWN]]
            yield StrayBlocks(tier=tier, blocks=len(blocks), hashes=shown, said=last_event)
