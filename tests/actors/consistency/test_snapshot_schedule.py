from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import msgspec
import pytest

from actors.consistency.snapshot_schedule import (
    AGAIN_MIN_MS,
    CLAIM,
    MANIFESTS_READ_MAX,
    MIN_EVENTS,
    READ_EVERY_MS,
    RETRY_MAX_MS,
    RETRY_MIN_MS,
    SnapshotSchedule,
)
from core.clock import ManualClock
from core.errors import Unavailable, WrongSequence
from core.ids import ReplicaId, StreamSeq
from core.snapshot_manifest import Manifest
from core.subjects import LOAD, ROUTING, SNAPSHOTS, kv_stream, subject
from projections.digest import FOLD_VERSION
from projections.runner.rebuild import take_snapshot
from streams.memory.memory_log import MemoryLog
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from streams.snapshot_store import SnapshotStore
from tests.projections.facts import joined, restated, worker_id
from tests.projections.speaker import CHAIN_KEY, Speaker

EVERY_S = 3600.0
HOUR_MS = 3_600_000


class Writer:
    """One replica's writer, and what it was asked to take."""

    def __init__(self, land: Land, name: str) -> None:
        self.registry = MemoryRegistry(land.registry)
        self.fences: list[int] = []
        self.folded = MIN_EVENTS
        self.error: Exception | None = None
        self.waits: asyncio.Event | None = None
        """What a take waits for before it writes."""
        self._land = land
        self._name = name
        self.writer = SnapshotSchedule(
            self.registry,
            land.clock,
            lambda: ReplicaId(name * 16),
            every_s=EVERY_S,
            newest_first=land.store.newest_first,
            take=self.take,
            folded=lambda: self.folded,
        )

    async def take(self, fence: int) -> None:
        self.fences.append(fence)
        if self.error is not None:
            raise self.error
        if self.waits is not None:
            await self.waits.wait()
        land = self._land
        await take_snapshot(land.log, land.store, CHAIN_KEY, self._name, fence, land.clock.wall_ms())


class Land:
    """A log with some history, a registry, and time."""

    def __init__(self) -> None:
        self.clock = ManualClock(100 * HOUR_MS)
        self.log = MemoryLog("test", self.clock)
        self.store = SnapshotStore(self.log, "test", CHAIN_KEY)
        self.registry = MemoryRegistryStore()

    async def start(self, names: str = "abc") -> list[Writer]:
        kv = kv_stream(0)
        await self.log.ensure([kv, LOAD, ROUTING, SNAPSHOTS])
        said = Speaker(kv, worker_id(1)).say(joined())
        await self.log.append(said.stream, said.subject, said.payload, "w:0", StreamSeq(0))
        return [Writer(self, name) for name in names]

    async def pass_(self, minutes: int, writers: list[Writer]) -> None:
        """All look once a minute."""
        for _ in range(minutes):
            self.clock.advance(60_000)
            for each in writers:
                await each.writer.step()

    async def commit(self, manifest: Manifest) -> None:
        """A manifest of somebody else's stands in the log."""
        where = subject("test", SNAPSHOTS, "manifest")
        last = await self.log.last(SNAPSHOTS, where)
        seq = StreamSeq(0 if last is None else last.seq)
        content = msgspec.structs.replace(manifest, before_seq=seq).to_bytes()
        await self.log.append(SNAPSHOTS, where, content, f"m:{seq}", seq)


@pytest.fixture
async def land() -> AsyncIterator[Land]:
    yield Land()


async def test_one_of_three_writes(land: Land) -> None:
    """Every hour there is one snapshot more, all by the same replica; the others stand by and know of it."""
    a, b, c = await land.start()
    await land.pass_(150, [a, b, c])
    assert [len(each.fences) for each in (a, b, c)] == [3, 0, 0]
    manifests = await land.store.manifests()
    assert [(manifest.by, manifest.fence) for manifest in manifests] == [("a", a.fences[0])] * 3
    ages = [manifests[i].made_ms - manifests[i + 1].made_ms for i in range(2)]
    assert ages == [HOUR_MS, HOUR_MS]
    assert a.writer.describe()["writer"]
    for other in (b, c):
        described = other.writer.describe()
        assert (described["id"], described["by"], described["writer"]) == (manifests[0].id, "a", False)
        assert described["age_s"] == (land.clock.wall_ms() - manifests[0].made_ms) // 1000


async def test_a_new_writer_keeps_the_schedule(land: Land) -> None:
    """When the writer's lease runs out another takes over at once, and takes a snapshot when the next one is due."""
    a, b = await land.start("ab")
    await land.pass_(5, [a, b])
    assert a.fences
    a.registry.away = True
    land.registry.expire(CLAIM)
    await land.pass_(50, [a, b])
    assert b.writer.describe()["writer"]
    assert not b.fences
    assert not a.writer.describe()["writer"]
    a.registry.away = False
    await land.pass_(20, [a, b])
    assert (len(a.fences), len(b.fences)) == (1, 1)
    assert b.fences[0] > a.fences[0]


async def test_a_former_writer_is_fenced(land: Land) -> None:
    """One that lost its claim while it was writing commits nothing, and the newer snapshot stands."""
    a, b = await land.start("ab")
    a.waits = asyncio.Event()
    slow = asyncio.create_task(land.pass_(1, [a]))
    while not a.fences:
        await asyncio.sleep(0)
    land.registry.expire(CLAIM)
    await land.pass_(1, [b])
    a.waits.set()
    await slow
    assert [manifest.by for manifest in await land.store.manifests()] == ["b"]
    assert (a.writer.describe()["failed"], b.writer.describe()["taken"]) == (1, 1)
    await land.pass_(20, [a, b])
    assert (len(a.fences), len(b.fences)) == (1, 1)


async def test_a_snapshot_with_incomplete_sources_makes_them_restate(land: Land) -> None:
    """All replicas hear of it, the writer as such; it is taken again, ever later, and in time once it is complete."""
    a, b = await land.start("ab")
    heard: list[tuple[str, bool]] = []
    for each in (a, b):
        each.writer._on_incomplete = lambda _manifest, writer, name=each._name: heard.append((name, writer))  # type: ignore[misc]
    kv = kv_stream(0)
    said = Speaker(kv, worker_id(2))
    said.say(joined())
    gap = said.say(joined())
    await land.log.append(gap.stream, gap.subject, gap.payload, "gap", StreamSeq(0))
    times: list[int] = []
    for _ in range(2 * HOUR_MS // 30_000):
        land.clock.advance(30_000)
        taken = len(a.fences)
        for each in (a, b):
            await each.writer.step()
        if len(a.fences) > taken:
            times.append(land.clock.wall_ms())
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[:4] == [AGAIN_MIN_MS, 2 * AGAIN_MIN_MS, 4 * AGAIN_MIN_MS, 8 * AGAIN_MIN_MS]
    assert max(pauses) <= HOUR_MS
    assert sorted(heard[:2]) == [("a", True), ("b", False)]
    assert not b.fences
    whole = said.say(joined(), restated(0, 1, 1))
    await land.log.append(whole.stream, whole.subject, whole.payload, "whole", StreamSeq(2))
    await land.pass_(70, [a, b])
    assert a.writer.newest is not None
    assert not a.writer.newest.why_no_start
    fences = len(a.fences)
    await land.pass_(50, [a, b])
    assert len(a.fences) == fences


async def test_little_history_is_not_worth_it(land: Land) -> None:
    """There is no first snapshot before MIN_EVENTS were folded; there is one soon afterwards."""
    (a,) = await land.start("a")
    a.folded = MIN_EVENTS - 1
    await land.pass_(120, [a])
    assert not a.fences
    a.folded = MIN_EVENTS
    await land.pass_(1, [a])
    assert len(a.fences) == 1


@pytest.mark.parametrize("error", [Unavailable("away"), WrongSequence("fenced"), OSError("no memory"), TimeoutError()])
async def test_a_failure_is_tried_again_later(land: Land, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """A snapshot that fails is tried again, each time twice as much later up to a bound, and that is said."""
    (a,) = await land.start("a")
    a.error = error
    tried: list[int] = []
    for _ in range(2 * RETRY_MAX_MS * 2 // 1000):
        land.clock.advance(1000)
        before = len(a.fences)
        await a.writer.step()
        if len(a.fences) > before:
            tried.append(land.clock.monotonic_ms())
    pauses = [after - before for before, after in pairwise(tried)]
    assert pauses[:3] == [RETRY_MIN_MS, 2 * RETRY_MIN_MS, 4 * RETRY_MIN_MS]
    assert pauses[-1] == RETRY_MAX_MS
    assert caplog.text.count("no snapshot was taken") == len(tried) == a.writer.describe()["failed"]
    a.error = None
    await land.pass_(11, [a])
    assert a.writer.describe()["taken"] == 1


async def test_a_take_is_bounded(land: Land, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that does not come to an end is given up."""
    monkeypatch.setattr("actors.consistency.snapshot_schedule.TAKE_TIMEOUT_S", 0.01)
    (a,) = await land.start("a")
    a.waits = asyncio.Event()
    await land.pass_(1, [a])
    assert a.writer.describe()["failed"] == 1


async def test_stopping_gives_way(land: Land) -> None:
    """A writer that stops takes no more, and another is the writer at its next look."""
    a, b = await land.start("ab")
    a.waits = asyncio.Event()
    running = asyncio.create_task(a.writer.run())
    while not a.fences:
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    await a.writer.stop()
    await land.pass_(1, [b])
    assert len(b.fences) == 1
    assert repr(b.writer).startswith("<SnapshotSchedule writing")


async def test_registry_or_log_away(land: Land) -> None:
    """While either is away nothing is taken and nothing breaks; afterwards all goes on."""
    (a,) = await land.start("a")
    a.registry.away = True
    await land.pass_(2, [a])
    a.registry.away = False
    land.log.away = True
    await land.pass_(2, [a])
    assert not a.fences
    land.log.away = False
    await land.pass_(READ_EVERY_MS // 60_000, [a])
    assert len(a.fences) == 1


async def test_a_registry_that_counts_anew(land: Land) -> None:
    """After the registry lost its data claims are lower than before: snapshots go on all the same."""
    (a,) = await land.start("a")
    for _ in range(50):
        land.registry.put("busy", b"")
    await land.pass_(1, [a])
    a.registry.away = True
    land.registry.wipe()
    a.registry.away = False
    await land.pass_(61, [a])
    assert a.writer.revision == 1
    assert len(a.fences) == a.writer.describe()["taken"] == 2
    assert len(await land.store.manifests()) == 2


async def test_other_fold_versions(land: Land) -> None:
    """Another version's snapshots are of no use to us: they count neither for the schedule nor against our claim."""
    (a,) = await land.start("a")
    await land.pass_(1, [a])
    (ours,) = await land.store.manifests()
    land.clock.advance(HOUR_MS // 2)
    await land.commit(
        msgspec.structs.replace(
            ours, fold_version=FOLD_VERSION + 1, fence=10_000, id="other", made_ms=land.clock.wall_ms()
        )
    )
    await land.pass_(31, [a])
    assert a.fences == [ours.fence, 10_000]
    assert a.writer.describe()["taken"] == 2
    for number in range(MANIFESTS_READ_MAX):
        await land.commit(msgspec.structs.replace(ours, fold_version=FOLD_VERSION + 1, id=f"other-{number}"))
    await land.pass_(1, [a])
    assert len(a.fences) == 3  # ours lie too far back to be looked for


async def test_a_manifest_from_the_future(land: Land) -> None:
    """A writer's clock that was wrong does not keep others from writing for longer than an interval."""
    (a,) = await land.start("a")
    await land.pass_(1, [a])
    (ours,) = await land.store.manifests()
    await land.commit(msgspec.structs.replace(ours, made_ms=land.clock.wall_ms() + 1000 * HOUR_MS, id="future"))
    await land.pass_(2, [a])
    assert len(a.fences) == 2
    assert (await land.store.manifests())[0].by == "a"
