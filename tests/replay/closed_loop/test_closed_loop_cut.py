"""Records that begin in the middle, and records without names: run again all the same."""

from __future__ import annotations

from pathlib import Path

from core.ids import StreamSeq
from core.subjects import SNAPSHOTS
from projections.runner.rebuild import take_snapshot
from replay.closed_loop.closed_loop import ClosedLoopOptions, ClosedLoopResult, closed_loop
from replay.recording.recording import Recording
from replay.redact.redaction import redact
from streams.archive.archive_export import Range
from streams.archive.archive_reader import ArchiveReader
from streams.snapshot_store import SnapshotStore
from tests.actors.world import KEY, NAMESPACE, world
from tests.replay.recorded import archived, conversations

CLIENTS, TURNS = 6, 4


def run_again(path: Path) -> ClosedLoopResult:
    with Recording.open(path) as recording:
        return closed_loop(recording, [], ClosedLoopOptions(engine={"prefill_us_per_token": 1}))


async def test_a_record_with_a_snapshot_before_it(tmp_path: Path) -> None:
    """Who was there already is known by the snapshot; that caches held something is said. Names make no difference."""
    async with world() as it:
        await it.log.ensure([SNAPSHOTS])
        for name in ("left", "right"):
            await it.worker(name)
        router = await it.router()
        await it.ready(router, 2)
        await conversations([router], CLIENTS, TURNS)
        await it.settled(router)
        store = SnapshotStore(it.log, NAMESPACE, KEY.chain_key)
        await take_snapshot(it.log, store, KEY.chain_key, "frontend-0", 1, it.clock.wall_ms())
        middle = {s: StreamSeq((await it.log.state(s)).last_seq + 1) for s in await it.log.streams()}
        await conversations([router], CLIENTS, TURNS)
        await it.settled(router)
        whole = await archived(it.log, NAMESPACE, KEY, tmp_path / "whole")
        part = await archived(it.log, NAMESPACE, KEY, tmp_path / "part", Range(middle))

    both, cut = run_again(whole), run_again(part)
    assert (both.basis.requests, both.basis.warm) == (2 * CLIENTS * TURNS, False)
    assert (cut.basis.requests, cut.basis.warm) == (CLIENTS * TURNS, True)
    assert both.basis.workers == cut.basis.workers == ("left", "right")
    assert cut.recorded.hit_rate > cut.baseline.report.hit_rate  # what was in the caches is in no record

    with ArchiveReader.open(whole) as source:
        redact(source, tmp_path / "redacted", KEY.chain_key, program="contrail test", made_ms=1)
    nameless = run_again(tmp_path / "redacted")
    assert nameless.recorded == both.recorded
    assert nameless.baseline.report.hit_rate == both.baseline.report.hit_rate
