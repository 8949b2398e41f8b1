"""Rebuilding: from whichever snapshot the log bears out, and else from the log, with the same result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from core.errors import Refused, Unavailable, WrongSequence
from core.ids import StreamName, StreamSeq
from core.snapshot_manifest import Manifest
from core.subjects import LOAD, ROUTING, SNAPSHOTS, kv_stream
from projections.folds.snapshot import encode
from projections.folds.state import State
from projections.runner import rebuild as rebuild_module
from projections.runner.rebuild import SLICE_RECORDS_MAX, RebuildResult, fold_on, rebuild
from streams.log import Record
from tests.projections.facts import joined, load, stored
from tests.projections.made_log import KV, A, MadeLog, made
from tests.projections.speaker import CHAIN_KEY


async def rebuilt(it: MadeLog) -> RebuildResult:
    return await rebuild(it.log, CHAIN_KEY, it.store)


async def check(it: MadeLog, manifest: Manifest | None, *why: str) -> None:
    """A rebuild begins there, refuses newer ones for these reasons, and has what a fold of the whole log has."""
    found, whole = await rebuilt(it), await it.folded()
    assert found.manifest == manifest
    assert len(found.refused) == len(why)
    assert all(reason in refused for reason, refused in zip(why, found.refused, strict=True))
    assert (found.state.digest, found.state.cursor) == (whole.digest, whole.cursor)
    assert encode(found.state) == encode(whole)


async def test_without_a_snapshot_the_log_is_folded() -> None:
    """From its start; so without a store."""
    it = await made()
    await check(it, None)
    assert (await rebuild(it.log, CHAIN_KEY, None)).state.digest == (await it.folded()).digest


async def test_a_snapshot_and_its_tail_are_the_log() -> None:
    """The newest one is begun with; what the log has before it is not read."""
    it = await made()
    first = await it.snapshot()
    await check(it, first)
    await it.grow()
    await check(it, first)
    second = await it.snapshot()
    await it.grow(1)
    reads, before = [], it.log.read

    def read(stream: StreamName, start: StreamSeq) -> AsyncIterator[Record]:
        reads.append((stream, start))
        return before(stream, start)

    it.log.read = read  # type: ignore[method-assign]
    assert (await rebuilt(it)).manifest == second
    assert {start for stream, start in reads if stream != SNAPSHOTS} == {
        StreamSeq(at.seq + 1) for at in second.cursor.values()
    }


async def test_a_stream_that_came_later_is_folded_from_its_start() -> None:
    """The snapshot knows nothing of it."""
    it = await made()
    manifest = await it.snapshot()
    await it.log.ensure([kv_stream(1)])
    await it.say(kv_stream(1), "77" * 8, joined("c"), stored(9))
    await check(it, manifest)


async def test_a_snapshot_is_as_good_as_the_history_that_retention_took() -> None:
    """What it covers may be gone from the log, but not what follows it."""
    it = await made()
    manifest = await it.snapshot()
    await it.grow()
    whole = await it.folded()
    it.log.expire(KV, StreamSeq(manifest.cursor[KV].seq + 1))
    found = await rebuilt(it)
    assert (found.manifest, encode(found.state)) == (manifest, encode(whole))
    it.log.expire(KV, StreamSeq(manifest.cursor[KV].seq + 2))
    found = await rebuilt(it)
    assert (found.manifest, found.state.incomplete) == (None, 1)
    assert "what follows its cursor" in found.refused[0]


async def test_a_snapshot_with_an_incomplete_source_is_no_start() -> None:
    """Neither if its manifest says so nor if that was forged; the one after the restatement is."""
    it = await made()
    await it.grow()
    it.log.expire(KV, StreamSeq(4))
    half = await it.snapshot()
    assert (half.incomplete, half.why_no_start) == (1, "1 source was incomplete when it was taken")
    found = await rebuilt(it)
    assert (found.manifest, found.refused) == (None, [f"snapshot {half.id}: {half.why_no_start}"])
    last = await it.log.last(SNAPSHOTS, "contrail.test.snapshots.manifest")
    assert last is not None
    it.log.rewrite(SNAPSHOTS, last.seq, msgspec.structs.replace(half, incomplete=0).to_bytes())
    found = await rebuilt(it)
    assert found.manifest is None
    assert "hides that 1 of its sources" in found.refused[0]
    await it.restate()
    whole = await it.snapshot()
    assert (whole.incomplete, (await rebuilt(it)).manifest) == (0, whole)


async def test_a_stream_whose_messages_are_all_gone_stands_at_its_end() -> None:
    """Nothing is behind, and a snapshot of it is good."""
    it = await made()
    it.log.expire(LOAD, StreamSeq(2))
    manifest = await it.snapshot()
    found = await rebuilt(it)
    assert (found.manifest, found.state.cursor[LOAD].seq) == (manifest, 1)
    await it.say(LOAD, A, load(3))
    assert (await rebuilt(it)).manifest == manifest


async def spoil(it: MadeLog, fault: str) -> None:
    """Something is wrong with the newest snapshot, or with the log under it."""
    last = await it.log.last(SNAPSHOTS, "contrail.test.snapshots.manifest")
    assert last is not None
    manifest = Manifest.parse(last.payload)
    if fault == "chunk":
        it.log.rewrite(SNAPSHOTS, StreamSeq(manifest.first_seq), b"x" * manifest.size_bytes)
    elif fault == "digest":
        it.log.rewrite(SNAPSHOTS, last.seq, msgspec.structs.replace(manifest, digest="f" * 16).to_bytes())
    elif fault == "fold version":
        it.log.rewrite(SNAPSHOTS, last.seq, msgspec.structs.replace(manifest, fold_version=99).to_bytes())
    elif fault == "foreign stream":
        cursor = manifest.cursor | {"kv_7": manifest.cursor[KV]}
        it.log.rewrite(SNAPSHOTS, last.seq, msgspec.structs.replace(manifest, cursor=cursor).to_bytes())
    elif fault == "rolled back":
        it.log.cut(KV, StreamSeq(manifest.cursor[KV].seq - 1))
    else:
        it.log.delete(KV, StreamSeq(manifest.cursor[KV].seq))


FAULTS = {
    "chunk": "not what was written",
    "digest": "other digests",
    "fold version": "of fold version 99",
    "foreign stream": "stream kv_7 is gone",
    "rolled back": "ends at",
    "message deleted": "another message or none",
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_one_before_a_bad_snapshot_is_used(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    """And it is said why the newest is not."""
    it = await made()
    first = await it.snapshot()
    await it.grow()
    await it.snapshot()
    await it.grow(0 if fault == "rolled back" else 1)
    await spoil(it, fault)
    found = await rebuilt(it)
    assert found.manifest == first
    assert FAULTS[fault] in found.refused[0]
    assert FAULTS[fault] in caplog.text
    assert found.state.digest == (await it.folded()).digest


async def test_sequences_used_again_are_noticed() -> None:
    """The log was rolled back and grew past the snapshot's cursor: another message stands there."""
    it = await made()
    copy = it.log.copy()
    await it.say(KV, A, stored(50))
    await it.snapshot()
    snapshots = await _all(it)
    it.log.restore(copy)
    it.log.replace(SNAPSHOTS, snapshots)
    it.speaker(KV, A).n_next -= 1
    await it.say(KV, A, stored(51))
    await it.say(KV, A, stored(52))
    await check(it, None, "another message or none stands at its cursor kv_0:3")


async def _all(it: MadeLog) -> list[Record]:
    return [record async for record in it.log.read(SNAPSHOTS, StreamSeq(1))]


async def test_a_stream_made_anew_needs_another_snapshot() -> None:
    """The old one is of no use, for no stream: its parts are one value."""
    it = await made()
    await it.snapshot()
    it.log.remake(ROUTING)
    found = await rebuilt(it)
    assert (found.manifest, "was made anew" in found.refused[0]) == (None, True)


async def test_snapshots_that_may_not_be_read_are_done_without(caplog: pytest.LogCaptureFixture) -> None:
    """No rights to the stream, say: the log itself is folded."""
    it = await made()
    await it.snapshot()

    async def refuse(*_: object) -> None:
        raise Refused("no rights")

    it.log.last = refuse  # type: ignore[method-assign, assignment]
    found = await rebuilt(it)
    assert (found.manifest, found.refused) == (None, ["snapshots cannot be read: no rights"])
    assert "no rights" in caplog.text


@pytest.mark.parametrize("calls", range(8))
async def test_a_log_that_goes_away_fails_the_rebuild(calls: int) -> None:
    """At whichever call; nothing half done is returned."""
    it = await made()
    await it.snapshot()
    before, left = it.log._check_here, calls

    def fail_later() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Unavailable("gone")
        before()

    it.log._check_here = fail_later  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        await rebuilt(it)


async def test_a_stream_made_anew_meanwhile_fails_the_rebuild() -> None:
    """Going on would mix two histories."""
    it = await made()
    state = State(CHAIN_KEY)
    await fold_on(it.log, state)
    it.log.remake(KV)
    with pytest.raises(Unavailable, match="made anew"):
        await fold_on(it.log, state)


async def test_others_have_their_turn() -> None:
    """At least every SLICE_RECORDS_MAX records, also where time stands still."""
    it = await made()
    for _ in range(3 * SLICE_RECORDS_MAX):
        await it.say(LOAD, A, load(1))
    turns, folding = 0, asyncio.create_task(rebuilt(it))
    while not folding.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 3


async def test_slices_end_by_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few large messages are as long as many small ones."""
    monkeypatch.setattr(rebuild_module, "SLICE_S", -1.0)
    slices = rebuild_module.Slices()
    assert slices.over()


async def test_snapshots_are_taken_in_order_by_one_writer() -> None:
    """Each builds on the one before; a writer with an older claim is refused."""
    it = await made()
    first = await it.snapshot(fence=3)
    await it.grow()
    second = await it.snapshot(fence=4)
    assert (second.before_seq, second.fence, second.incomplete, second.by) == (2, 4, 0, "test")
    assert first.id < second.id
    assert await it.store.manifests() == [second, first]
    with pytest.raises(WrongSequence):
        await it.snapshot(fence=3)
    await check(it, second)
