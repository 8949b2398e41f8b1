"""Redaction: no name is left anywhere, and every decision comes out of what is left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from core.codec import JSON_START, decode_message, digest
from core.events import DivergenceFound, LoadReported, ReplicaReported, RequestFinished, RequestRouted, WorkerJoined
from core.ids import StreamName, StreamSeq
from core.prompt import tokens_to_bytes
from core.subjects import ROUTING, SNAPSHOTS
from projections.folds.snapshot import decode
from projections.policy.decide import decide
from projections.runner.rebuild import take_snapshot
from replay.playback.playback import Playback, RecordedDecision
from replay.recording.recording import Recording
from replay.redact.redaction import RedactionResult, redact
from replay.verify.chain_proof import gaps_of
from replay.verify.evidence import Evidence
from streams.archive.archive_export import Range
from streams.archive.archive_reader import ArchiveReader
from streams.snapshot_store import SnapshotStore
from tests.actors.world import KEY, NAMESPACE, World, world
from tests.fixtures.eventually import eventually
from tests.replay.recorded import archived, conversations

TENANT = "acme-corp"


class Recorded(NamedTuple):
    whole: Path
    part: Path
    """The last third, behind a snapshot, with another one within."""
    start: StreamSeq
    """Where that begins in the routing stream."""


@pytest.fixture(scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Recorded]:
    """Two replicas under load, a worker that dies in the middle, three snapshots on the way."""
    folder = tmp_path_factory.mktemp("redaction")
    async with world() as it:
        await it.log.ensure([SNAPSHOTS])
        for name in ("zebra-7", "heron-3"):
            await it.worker(name)
        for name in ("lynx-0", "lynx-1"):
            await it.router(name)
        for router in it.routers.values():
            await eventually(lambda router=router: router.ready()[0], "ready")  # type: ignore[misc]
        for fence in range(1, 4):
            await load(it)
            if fence == 2:
                middle = {s: StreamSeq((await it.log.state(s)).last_seq + 1) for s in await it.log.streams()}
                await it.crash("heron-3")
                await it.worker("heron-3")
                await load(it)
            await snapshot(it, fence)
        await load(it)
        for router in it.routers.values():
            await it.settled(router)
        whole = await archived(it.log, NAMESPACE, KEY, folder / "whole.contrail")
        part = await archived(it.log, NAMESPACE, KEY, folder / "part.contrail", Range(middle))
    yield Recorded(whole, part, middle[ROUTING])


async def load(it: World) -> None:
    await conversations(list(it.routers.values()), 6, 4, 4, TENANT)


async def snapshot(it: World, fence: int) -> None:
    store = SnapshotStore(it.log, NAMESPACE, KEY.chain_key)
    await take_snapshot(it.log, store, KEY.chain_key, "lynx-0", fence, it.clock.wall_ms())


def redacted(path: Path, target: Path, key: bytes = KEY.chain_key) -> RedactionResult:
    with ArchiveReader.open(path) as source:
        return redact(source, target, key, program="contrail test", made_ms=1)


def everything(path: Path) -> bytes:
    """All that can be read in the file, unpacked."""
    with ArchiveReader.open(path) as archive:
        parts = [archive.contents.to_bytes()]
        parts += [row.owner.encode() + row.payload for block in archive.contents.blocks for row in archive._rows(block)]
        parts += [archive.snapshot(manifest) for manifest in archive.snapshots()]
    return b"\n".join(parts)


def again(situation: RecordedDecision) -> str:
    event = situation.event
    return decide(situation.view, situation.request, situation.settings, event.now_ms, event.seed).digest


async def test_no_name_is_left(run: Recorded, tmp_path: Path) -> None:
    """Searched in every block, every snapshot and the contents; in the original each of them is there."""
    for path in run[:2]:
        target = tmp_path / path.name
        done = redacted(path, target)
        before, after = everything(path), everything(target)
        for name in ("zebra-7", "heron-3", "lynx-0", "lynx-1", TENANT, "127.0.0.1", '"namespace":"test"'):
            assert name.encode() in before
            assert name.encode() not in after
        assert done.names == 5
        assert done.dropped_snapshots == ()
        assert b"127.0.0.1" not in target.read_bytes()


@pytest.mark.parametrize("key", [KEY.chain_key, b""], ids=["with the key", "without it"])
async def test_every_decision_comes_out_of_it(run: Recorded, tmp_path: Path, key: bytes) -> None:
    """Of the whole and of a range; without a doubt, without a gap, and the same ones as were recorded."""
    for path in run[:2]:
        target = tmp_path / path.name
        redacted(path, target, key)
        with Recording.open(path, KEY) as original, Recording.open(target) as recording:
            assert not recording.proved
            found, expected = judged(recording), judged(original)
            assert [(decided, request, doubts) for decided, _, request, doubts in found] == [
                (decided, request, doubts) for decided, _, request, doubts in expected
            ]
            assert len(found) >= 24
            within = judged(recording, run.start if path == run.part else 1)
            assert len(within) >= 48
            assert all(recorded == replayed and not doubts for recorded, replayed, _, doubts in within)


def judged(recording: Recording, start: int = 1) -> list[tuple[str, str, str, dict[str, str]]]:
    """Of each decision the recorded digest, the one of now, the request and the doubts."""
    playback = Playback(recording, start, gaps=gaps_of(recording))
    return [(it.event.digest, again(it), it.event.request, Evidence(playback).known(it)) for it in playback]


async def test_an_export_holds_no_prompt(run: Recorded) -> None:
    """Not two tokens of one, side by side; nor of an answer."""
    whole = everything(run.whole)
    prompts = [tokens_to_bytes(range(start, start + 108)) for start in (0, 1000, 2000)]
    assert all(len(prompt) == 4 * 108 for prompt in prompts)
    assert not any(prompt[at : at + 8] in whole for prompt in prompts for at in range(0, len(prompt) - 8, 4))


async def test_snapshots_fit_the_new_chains(run: Recorded, tmp_path: Path) -> None:
    """Folding on from any of them comes to what folding from the first message comes to, and nothing is missing."""
    redacted(run.whole, tmp_path / "r")
    with Recording.open(tmp_path / "r") as recording:
        whole = recording.state_before({})
        for stream, seq in recording.end.items():
            recording.advance(whole, stream, seq)
        manifests = recording.archive.snapshots()
        assert len(manifests) == 3
        for manifest in manifests:
            state = decode(recording.chain_key, recording.archive.snapshot(manifest))
            assert f"{state.digest:016x}" == manifest.digest
            for name, at in manifest.cursor.items():
                record = recording.archive.at(StreamName(name), at.seq)
                assert record is not None
                assert at.head == digest(record.payload, recording.chain_key).hex()
            for stream, seq in recording.end.items():
                recording.advance(state, stream, seq)
            assert state.digest == whole.digest
            assert state.gaps_found == whole.gaps_found == 0
            assert state.incomplete == 0


async def test_what_stays_and_what_does_not(run: Recorded, tmp_path: Path) -> None:
    """Message for message: the same places, sources and numbers; JSON stays JSON; reports of digests are gone."""
    redacted(run.whole, tmp_path / "r")
    with ArchiveReader.open(run.whole) as original, ArchiveReader.open(tmp_path / "r") as archive:
        assert archive.contents.namespace == "redacted"
        assert archive.contents.redacted
        names = set()
        for stream in original.streams:
            assert archive.span(stream) == original.span(stream)
            for was, now in zip(original.read(stream), archive.read(stream), strict=True):
                one, other = decode_message(was.payload), decode_message(now.payload)
                assert (was.seq, was.time_ms, one.source, one.n) == (now.seq, now.time_ms, other.source, other.n)
                assert was.payload.startswith(JSON_START) == now.payload.startswith(JSON_START)
                left = [event for event in one.events if not isinstance(event, (ReplicaReported, DivergenceFound))]
                assert [type(event) for event in left] == [type(event) for event in other.events]
                for before, after in zip(left, other.events, strict=True):
                    _compare(before, after)
                    if isinstance(after, WorkerJoined):
                        names.add(after.name)
        assert names == {"worker-1", "worker-2"}  # one that came back has its name


def _compare(before: object, after: object) -> None:
    match before, after:
        case RequestRouted(), RequestRouted():
            assert after == msgspec.structs.replace(before, tenant="tenant-1")
        case LoadReported(), LoadReported():
            assert after == msgspec.structs.replace(before, kv_head=b"")
        case RequestFinished(), RequestFinished():
            assert (after.request, after.outcome, after.duration_ms) == (
                before.request,
                before.outcome,
                before.duration_ms,
            )
        case _:
            pass


async def test_foreign_request_ids_are_counted(run: Recorded, tmp_path: Path) -> None:
    """Ids that clients chose stay, and it is said how many there are."""
    done = redacted(run.whole, tmp_path / "r")
    with ArchiveReader.open(run.whole) as archive:
        routing = [decode_message(record.payload) for record in archive.read(StreamName("routing"))]
    ids = {event.request for message in routing for event in message.events if isinstance(event, RequestRouted)}
    assert done.foreign_requests == len(ids) > 0
