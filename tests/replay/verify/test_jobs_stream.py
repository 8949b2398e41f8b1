"""A log with a jobs stream is recorded, proved, verified, redacted, scanned and shown like any other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from api.debug.timeline.timeline_scan import TimelineScan
from core.codec import CHAIN_START, decode_message, digest, encode_event, encode_message
from core.events import Event, WorkerLeft
from core.events.jobs import JobEvent, PrefillCompleted, PrefillRequested
from core.ids import SourceId, StreamSeq, WorkerId
from core.snapshot_manifest import Manifest
from core.subjects import JOBS, SNAPSHOTS, answered_token, asked_token, owner, subject
from projections.runner.rebuild import take_snapshot
from replay.playback.playback import Playback
from replay.recording.recording import Recording
from replay.redact.redaction import redact
from replay.verify.chain_proof import prove
from replay.verify.evidence import Evidence
from replay.verify.verify import verify
from streams.archive.archive_export import Range
from streams.archive.archive_reader import ArchiveReader
from streams.snapshot_store import SnapshotStore
from tests.actors.world import KEY, NAMESPACE, World, collect, request, world
from tests.fixtures.eventually import eventually
from tests.projections.job_facts import asked, cancelled, completed, failed, started
from tests.replay.recorded import archived
from tests.replay.tampered import tampered

D, P, GONE = "d1" * 8, "e2" * 8, "c3" * 8
SECRET = "mr-smith"


class Writer:
    """Somebody who writes into the jobs stream, sealed with the deployment's key."""

    def __init__(self, it: World, worker: str, token: str) -> None:
        self._it = it
        self._source = SourceId(worker)
        self._where = subject(NAMESPACE, JOBS, token)
        self._n, self._head, self._seq = 0, CHAIN_START, StreamSeq(0)

    async def say(self, *events: Event) -> None:
        payload = encode_message(self._source, self._n, self._head, 0, [encode_event(event) for event in events])
        self._n, self._head = self._n + 1, digest(payload, KEY.chain_key)
        self._seq = await self._it.log.append(JOBS, self._where, payload, self._head.hex(), self._seq)


async def jobs(it: World) -> Writer:
    """Jobs of every kind, and a worker that is over, with a name in its words. Returns the one who asked."""
    d, p = Writer(it, D, asked_token(D)), Writer(it, P, answered_token(P))
    await d.say(asked("0a" * 8, 1), asked("0b" * 8, 2))
    await p.say(started("0a" * 8, 1, D), completed("0a" * 8, 0))
    await p.say(started("0b" * 8, 1, D), failed("0b" * 8, 0, dead=True))
    await d.say(cancelled("0b" * 8, 1))
    await Writer(it, GONE, answered_token(GONE)).say(WorkerLeft(reason=f"{SECRET} asked for it"))
    return d


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A decision before all jobs, one between."""
    async with world() as it:
        await it.log.ensure([JOBS])
        await it.worker("a")
        router = await it.router()
        await it.ready(router)
        await collect(router, request(range(40)))
        d = await jobs(it)
        await eventually(lambda: len(router.state.jobs.ended) == 1, "they are folded")
        await collect(router, request(range(60)))
        await it.settled(router)
        await d.say(asked("0c" * 8, 2))
        return await archived(it.log, NAMESPACE, KEY, tmp_path / "log", Range())


def test_it_is_proved_and_every_decision_verified(path: Path) -> None:
    """The jobs' chains are walked too; decisions whose cursors name the stream come out the same."""
    with Recording.open(path, KEY) as recording:
        assert JOBS in recording.streams
        proof = prove(recording)
        assert (proof.broken, proof.keyed) == (0, True)
        found = verify(recording)
        assert (found.holds, found.verified, found.different, found.not_judged) == (True, 2, 0, {})
        assert found.folds.different == 0
        state = recording.state_at(recording.end)
        assert (state.jobs.open, state.jobs.dead_letters, state.incomplete) == (2, 1, 0)


def test_a_jobs_stream_that_cannot_be_read_casts_no_doubt_on_decisions(path: Path, tmp_path: Path) -> None:
    """No decision rests on jobs: what is missing of them is told, and not held against anybody."""
    spoiled = tmp_path / "spoiled"
    tampered(
        path,
        spoiled,
        lambda record: record._replace(payload=b"") if (record.stream, record.seq) == (JOBS, 4) else record,
    )
    with Recording.open(spoiled, KEY) as recording:
        assert recording.state_at(recording.end).corrupt > 0
        gaps = prove(recording).gaps
        assert [gap.stream for gap in gaps.all] == [JOBS]
        playback = Playback(recording, 1, None, gaps=gaps)
        assert [Evidence(playback).known(situation) for situation in playback] == [{}, {}]


def test_names_in_it_are_redacted(path: Path, tmp_path: Path) -> None:
    """Random ids stay; digests of prompts go; who asked and who answered can still be told apart."""
    with ArchiveReader.open(path) as source:
        redact(source, tmp_path / "r", KEY.chain_key, program="contrail test", made_ms=1)
    with Recording.open(tmp_path / "r") as recording:
        records = list(recording.archive.read(JOBS))
        assert not any(SECRET.encode() in record.payload or b"dddd" in record.payload for record in records)
        assert Counter(owner(record.subject) for record in records) == {D: 3, P: 2, GONE: 1}
        events = [event for record in records for event in decode_message(record.payload).events]
        assert sum(isinstance(event, JobEvent) for event in events) == 8
        assert next(event for event in events if isinstance(event, PrefillRequested)).job == "0a" * 8
        assert next(event for event in events if isinstance(event, PrefillCompleted)).blocks.ids == ((1,),)
        state = recording.state_at(recording.end)
        assert (state.jobs.open, state.incomplete, state.gaps_found) == (2, 0, 0)


async def test_a_snapshot_with_jobs_goes_into_a_redacted_log(tmp_path: Path) -> None:
    """Its chains go on there: nothing is a gap behind it."""
    async with world() as it:
        await it.log.ensure([JOBS, SNAPSHOTS])
        d = Writer(it, D, asked_token(D))
        await d.say(asked("0a" * 8, 1))
        store = SnapshotStore(it.log, NAMESPACE, KEY.chain_key)
        manifest: Manifest = await take_snapshot(it.log, store, KEY.chain_key, SECRET, 1, it.clock.wall_ms())
        await d.say(asked("0b" * 8, 2))
        path = await archived(it.log, NAMESPACE, KEY, tmp_path / "log")
    with ArchiveReader.open(path) as source:
        redact(source, tmp_path / "r", KEY.chain_key, program="contrail test", made_ms=1)
    with Recording.open(tmp_path / "r") as recording:
        assert [each.id for each in recording.archive.snapshots()] == [manifest.id]
        base = recording.state_before({stream: at.seq for stream, at in manifest.cursor.items()})  # type: ignore[misc]
        assert set(base.jobs.parts[WorkerId(D)].asked) == {"0a" * 8}
        state = recording.state_at(recording.end)
        assert (state.jobs.open, state.incomplete, state.gaps_found) == (2, 0, 0)


def test_the_page_reads_past_it(path: Path) -> None:
    """What shows workers and requests takes no harm, and no worker ends twice."""
    scan = TimelineScan()
    with ArchiveReader.open(path) as archive:
        for _ in scan.steps(archive):
            pass
    assert scan.messages == scan.total
    assert len(scan.decisions) == 2
