"""The store of snapshots: committed whole or not at all, by one writer at a time, and read only as it was written."""

from __future__ import annotations

import secrets

import msgspec
import pytest

from core.clock import ManualClock
from core.errors import Corrupt, Unavailable, WrongSequence
from core.ids import StreamName, StreamSeq
from core.keys import DeploymentKey
from core.snapshot_manifest import At, Manifest
from core.subjects import LOAD, SNAPSHOTS, kv_stream, subject
from streams import snapshot_store as snapshots_module
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.jetstream_log import JetStreamLog
from streams.log import EventLog
from streams.memory.memory_log import MemoryLog
from streams.snapshot_store import APPEND_TRIES, CHUNK_BYTES, MANIFESTS_MAX, WALK_BACK_MAX, SnapshotStore, coverage
from streams.topology import Topology

KEY = bytes(range(32))
KV = kv_stream(0)
CONTENT = [b"head", bytes(range(256)) * 4096, b"tail"]
"""Three chunks."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots_module, "APPEND_RETRY_S", 0.001)


@pytest.fixture
async def log() -> MemoryLog:
    log = MemoryLog("test", ManualClock(1000))
    await log.ensure([KV, LOAD, SNAPSHOTS])
    return log


@pytest.fixture
def store(log: MemoryLog) -> SnapshotStore:
    return SnapshotStore(log, "test", KEY)


def draft(id: str, fence: int = 1, cursor: dict[str, At] | None = None) -> Manifest:
    return Manifest(
        id=id, fold_version=2, made_ms=5, by="r", fence=fence, cursor=cursor or {}, digest="0" * 16, incomplete=0,
        chunks=0, first_seq=0, size_bytes=0, checksum="",
    )  # fmt: skip


def at(seq: int, epoch: int = 1000) -> At:
    return At(epoch=epoch, seq=seq, head="", digest="")


def manifest_subject() -> str:
    return subject("test", SNAPSHOTS, "manifest")


async def ids(store: SnapshotStore) -> list[str]:
    return [manifest.id for manifest in await store.manifests()]


async def read_back(log: EventLog, namespace: str) -> None:
    """What is written is read, and manifests are listed, newest first, each naming the one before."""
    store = SnapshotStore(log, namespace, KEY)
    assert await store.manifests() == []
    first = await store.write(CONTENT, draft("one"))
    second = await store.write([b"small"], draft("two"))
    assert (first.chunks, first.size_bytes, first.first_seq) == (3, sum(map(len, CONTENT)), 1)
    assert (first.before_seq, second.before_seq) == (0, 4)
    assert await store.manifests() == [second, first]
    assert await store.read(first) == b"".join(CONTENT)
    assert await store.read(second) == b"small"


async def test_what_is_written_is_read(log: MemoryLog) -> None:
    """In chunks of CHUNK_BYTES at most."""
    await read_back(log, "test")
    sizes = [
        len(record.payload) async for record in log.read(SNAPSHOTS, StreamSeq(1)) if "manifest" not in record.subject
    ]
    assert max(sizes) == CHUNK_BYTES


async def test_a_real_broker_keeps_snapshots(nats_server: EmbeddedNats) -> None:
    """The same over JetStream."""
    small = Topology(max_bytes=64 * 1024 * 1024)
    namespace = "t-" + secrets.token_hex(6)
    log = await JetStreamLog.connect([nats_server.url], namespace, small, nats_server.credentials)
    try:
        await log.ensure([SNAPSHOTS])
        await read_back(log, namespace)
    finally:
        await log.close()


async def test_a_log_without_the_stream_has_no_snapshots() -> None:
    """One of an earlier version, say."""
    log = MemoryLog("test", ManualClock(1000))
    await log.ensure([KV])
    assert await SnapshotStore(log, "test", KEY).manifests() == []


async def test_chunks_without_a_manifest_are_nothing(log: MemoryLog, store: SnapshotStore) -> None:
    """A writer that dies before the commit leaves garbage that nobody reads, also between another's chunks."""
    before = log.append

    async def interleaved(stream: StreamName, where: str, payload: bytes, id: str, expected: StreamSeq) -> StreamSeq:
        await before(SNAPSHOTS, subject("test", SNAPSHOTS, "dead"), b"garbage", id + "x", await _end(log, "dead"))
        return await before(stream, where, payload, id, expected)

    log.append = interleaved  # type: ignore[method-assign, assignment]
    manifest = await store.write(CONTENT, draft("one"))
    assert await ids(store) == ["one"]
    assert await store.read(manifest) == b"".join(CONTENT)


async def _end(log: MemoryLog, token: str) -> StreamSeq:
    last = await log.last(SNAPSHOTS, subject("test", SNAPSHOTS, token))
    return StreamSeq(0) if last is None else last.seq


async def test_a_writer_with_an_older_claim_is_refused(store: SnapshotStore) -> None:
    """Before it writes anything; one with the same claim goes on."""
    await store.write([b"a"], draft("one", fence=7))
    with pytest.raises(WrongSequence, match="claim 7"):
        await store.write([b"b"], draft("two", fence=6))
    await store.write([b"c"], draft("three", fence=7))
    assert await ids(store) == ["three", "one"]


async def test_of_two_writers_one_commits(log: MemoryLog, store: SnapshotStore) -> None:
    """Whoever commits second, having looked before the first did, gets WrongSequence, and is not read."""
    before, interrupted = log.append, False

    async def overtaken(stream: StreamName, where: str, payload: bytes, id: str, expected: StreamSeq) -> StreamSeq:
        nonlocal interrupted
        if where == manifest_subject() and not interrupted:
            interrupted = True
            await SnapshotStore(log, "test", KEY).write([b"other"], draft("other", fence=2))
        return await before(stream, where, payload, id, expected)

    log.append = overtaken  # type: ignore[method-assign, assignment]
    with pytest.raises(WrongSequence):
        await store.write([b"mine"], draft("mine", fence=1))
    assert await ids(store) == ["other"]


@pytest.mark.parametrize("id_first", [False, True])
async def test_lost_acknowledgements_are_survived(log: MemoryLog, store: SnapshotStore, id_first: bool) -> None:
    """Each message stands once, whichever way the broker answers a retry."""
    log.id_first = id_first
    log.acks_to_lose = 3
    manifest = await store.write(CONTENT, draft("one"))
    assert [record.seq async for record in log.read(SNAPSHOTS, StreamSeq(1))] == [1, 2, 3, 4]
    assert await store.read(manifest) == b"".join(CONTENT)


async def test_a_log_that_does_not_answer_is_given_up_on(log: MemoryLog, store: SnapshotStore) -> None:
    """After APPEND_TRIES."""
    log.acks_to_lose = APPEND_TRIES + 1
    log.full = True
    with pytest.raises(Unavailable):
        await store.write([b"a"], draft("one"))
    assert log.acks_to_lose == APPEND_TRIES + 1


@pytest.mark.parametrize("damage", ["flipped", "gone", "expired"])
async def test_a_damaged_content_is_refused(log: MemoryLog, store: SnapshotStore, damage: str) -> None:
    """A byte flipped, a chunk deleted, the first chunk out of retention."""
    manifest = await store.write(CONTENT, draft("one"))
    if damage == "flipped":
        record = await log.at(SNAPSHOTS, StreamSeq(2))
        assert record is not None
        log.rewrite(SNAPSHOTS, StreamSeq(2), record.payload[:-1] + b"x")
    elif damage == "gone":
        log.delete(SNAPSHOTS, StreamSeq(2))
    else:
        log.expire(SNAPSHOTS, StreamSeq(2))
    with pytest.raises(Corrupt):
        await store.read(manifest)


async def test_another_key_refuses_the_content(log: MemoryLog, store: SnapshotStore) -> None:
    """Who has no key cannot write a snapshot that is believed."""
    manifest = await store.write(CONTENT, draft("one"))
    with pytest.raises(Corrupt, match="not what was written"):
        await SnapshotStore(log, "test", bytes(32)).read(manifest)


@pytest.mark.parametrize("payload", [b"no manifest", None])
async def test_a_broken_manifest_is_passed_over(
    log: MemoryLog, store: SnapshotStore, payload: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once, and the one before it is found all the same, past the chunks; so where it was deleted."""
    for name in ("one", "two", "three"):
        await store.write(CONTENT, draft(name))
    log.rewrite(SNAPSHOTS, StreamSeq(8), payload)
    for _ in range(2):
        assert await ids(store) == ["three", "one"]
    assert caplog.text.count("snapshots:8") == (payload is not None)


async def test_a_manifest_of_a_later_version_is_passed_over_and_fences(log: MemoryLog, store: SnapshotStore) -> None:
    """It is of no use here, but its writer's claim holds, and it leads to the one before."""
    first = await store.write([b"a"], draft("one"))
    later = msgspec.structs.replace(first, v=99, id="two", fence=9, before_seq=2)
    await log.append(SNAPSHOTS, manifest_subject(), later.to_bytes(), "two", StreamSeq(2))
    assert await ids(store) == ["one"]
    with pytest.raises(WrongSequence):
        await store.write([b"c"], draft("three", fence=8))


async def test_lists_are_bounded(log: MemoryLog, store: SnapshotStore) -> None:
    """MANIFESTS_MAX at most; and past a broken one, no more than WALK_BACK_MAX messages are looked at."""
    end = StreamSeq(0)
    for number in range(MANIFESTS_MAX + 1):
        payload = msgspec.structs.replace(draft(f"n{number}"), before_seq=end).to_bytes()
        end = await log.append(SNAPSHOTS, manifest_subject(), payload, f"n{number}", end)
    assert len(await store.manifests()) == MANIFESTS_MAX
    asked, garbage = 0, StreamSeq(0)
    for number in range(WALK_BACK_MAX):
        where = subject("test", SNAPSHOTS, "garbage")
        garbage = await log.append(SNAPSHOTS, where, b"", f"g{number}", garbage)
    await log.append(SNAPSHOTS, manifest_subject(), b"broken", "broken", end)
    before = log.at

    async def counted(stream: StreamName, seq: StreamSeq) -> object:
        nonlocal asked
        asked += 1
        return await before(stream, seq)

    log.at = counted  # type: ignore[method-assign, assignment]
    assert await store.manifests() == []
    assert asked <= WALK_BACK_MAX


async def filled(log: MemoryLog, stream: StreamName, count: int) -> None:
    end = StreamSeq(0)
    for number in range(count):
        end = await log.append(stream, subject("test", stream, "a"), b"x", f"{stream}:{number}", end)


async def test_coverage_says_what_can_be_folded_again(log: MemoryLog, store: SnapshotStore) -> None:
    """From the log's start, from the oldest snapshot that is still followed, or, reported, from none."""
    await filled(log, KV, 10)
    assert [(c.stream, c.replayable_from, c.snapshot_before) for c in await coverage(log, [])] == [
        (KV, 1, True),
        (LOAD, 1, True),
    ]
    for seq in (3, 6):
        await store.write([b"a"], draft(f"at-{seq}", cursor={KV: at(seq), LOAD: at(0)}))
    manifests = await store.manifests()
    expected = {
        1: (1, True, False),
        4: (4, True, False),
        5: (7, False, False),
        7: (7, True, False),
        8: (None, False, True),
    }
    for first, (start, whole, cut) in expected.items():
        log.expire(KV, StreamSeq(first))
        found = (await coverage(log, manifests))[0]
        assert (found.first_seq, found.last_seq) == (first, 10)
        assert (found.replayable_from, found.snapshot_before, found.cut_behind_newest) == (start, whole, cut)


async def test_snapshots_of_another_epoch_cover_nothing(log: MemoryLog, store: SnapshotStore) -> None:
    """The stream was made anew: what was folded of the one before is no beginning of it."""
    await filled(log, KV, 4)
    await store.write([b"a"], draft("one", cursor={KV: at(3, epoch=1)}))
    log.expire(KV, StreamSeq(2))
    found = (await coverage(log, await store.manifests()))[0]
    assert (found.replayable_from, found.cut_behind_newest) == (None, False)


async def test_the_repr_is_one_line(store: SnapshotStore) -> None:
    """What a person sees in a log."""
    assert repr(store) == "<SnapshotStore of test>"


async def test_snapshots_of_earlier_generations_of_the_key_are_read(log: MemoryLog) -> None:
    """By the generation that wrote them, while the key has it; the newest writes."""
    first = DeploymentKey(bytes(32))
    second = first.rotated()
    old = await SnapshotStore(log, "test", first.chain_key).write(CONTENT, draft("old"))
    store = SnapshotStore(log, "test", second.chain_key)
    new = await store.write(CONTENT, draft("new"))
    assert await store.read(old) == await store.read(new) == b"".join(CONTENT)
    assert old.checksum != new.checksum
    with pytest.raises(Corrupt, match="not what was written"):
        await SnapshotStore(log, "test", first.chain_key).read(new)
    forgotten = SnapshotStore(log, "test", second.without(0).chain_key)
    assert await forgotten.read(new) == b"".join(CONTENT)
    with pytest.raises(Corrupt, match="not what was written"):
        await forgotten.read(old)
