"""`prove`: what was changed in a record is named by source and message; who has no key cannot mend it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from bench.replay_log import KEY, KV, Scale, made
from core.codec import Message, decode_message
from core.errors import Refused
from core.events import BlocksStored, ReplicaLost, ReplicaReported
from core.ids import StreamName, StreamSeq
from core.keys import DeploymentKey
from core.prompt import hashes_to_bytes
from core.subjects import LOAD, ROUTING
from replay.recording.recording import Recording
from replay.verify import partition
from replay.verify.chain_proof import ChainProof, gaps_of, prove
from replay.verify.verify import verify
from streams.archive.archive_export import Range
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from streams.log import Record
from tests.projections.made_log import A, B, MadeLog, R
from tests.projections.made_log import made as made_log
from tests.projections.speaker import CHAIN_KEY, Speaker
from tests.replay.recorded import archived
from tests.replay.tampered import event_changed, tampered

OTHER_KEY = DeploymentKey(bytes(reversed(range(32))))


class _ChainKey(DeploymentKey):
    """A deployment whose chain key is that of the made log."""

    @property
    def chain_key(self) -> bytes:
        return CHAIN_KEY


MADE_KEY = _ChainKey(bytes(32))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with a few hundred messages, and replicas that report."""
    return made(tmp_path_factory.mktemp("made") / "log", Scale(200, replicas=2, workers=3, report_every=50))


def proved(path: Path, key: DeploymentKey | None = KEY) -> ChainProof:
    with Recording.open(path, key) as recording:
        return prove(recording)


def seqs(path: Path, stream: StreamName, owner: str | None = None) -> list[StreamSeq]:
    """Where the stream's messages stand, or those of one of them."""
    with ArchiveReader.open(path) as archive:
        return [record.seq for record in archive.read(stream) if owner is None or record.subject.endswith(owner)]


def n_of(path: Path, stream: StreamName, seq: int) -> tuple[str, int]:
    with ArchiveReader.open(path) as archive:
        record = archive.at(stream, seq)
    assert record is not None
    message = decode_message(record.payload)
    return message.source, message.n


def at(stream: StreamName, seq: int, change: Callable[[Record], Record]) -> Callable[[Record], Record]:
    return lambda record: change(record) if (record.stream, record.seq) == (stream, seq) else record


def other_block(record: Record) -> Record:
    """What was stored is something else."""

    def change(message: Message) -> Message:
        return structs.replace(message, events=(BlocksStored(hashes=hashes_to_bytes([77])),))

    return event_changed(record, change)


def without(
    path_in: Path, path_out: Path, gone: set[tuple[StreamName, int]], first: dict[str, int] | None = None
) -> Path:
    """The export without some messages; `first` is what the log says that it retains."""
    with ArchiveReader.open(path_in) as source:
        contents = source.contents
        writer = ArchiveWriter(path_out, contents.namespace, KEY.chain_key, "x", contents.made_ms)
        for stream in source.streams:
            span = source.span(stream)
            retained = (first or {}).get(stream, span.log_first_seq)
            writer.open(stream, span.epoch, span.first_seq, retained)  # type: ignore[arg-type]
            for record in source.read(stream, retained):
                if (stream, record.seq) not in gone:
                    writer.add(record)
            writer.reached(stream, span.last_seq)
        made = writer.contents(0, contents.to_ms)
        writer.finish(made)
    return path_out


def test_a_log_that_nobody_touched_holds(path: Path) -> None:
    """With the key it is proved, and what replicas had read bears witness; without it the order is."""
    proof = proved(path)
    assert (proof.holds, proof.keyed, proof.origin, proof.breaks) == (True, True, True, [])
    assert proof.sources == 2 + 3 + 3
    assert proof.messages == sum(len(seqs(path, stream)) for stream in (KV, LOAD, ROUTING))
    assert proof.witnessed > 10
    keyless = proved(path, None)
    assert (keyless.holds, keyless.keyed, keyless.origin, keyless.witnessed) == (True, False, False, 0)
    assert keyless.messages == proof.messages


def test_a_changed_message_is_named_by_the_one_behind_it(path: Path, tmp_path: Path) -> None:
    """Source and number; whoever mends checksums cannot mend that. Without the key nobody sees it."""
    place = seqs(path, KV)[40]
    source, n = n_of(path, KV, place)
    changed = tampered(path, tmp_path / "it", at(KV, place, other_block))
    proof = proved(changed)
    assert not proof.holds
    broken = [each for each in proof.breaks if each.kind == "changed"]
    assert [(each.stream, each.source, each.n) for each in broken] == [(KV, source, n)]
    assert broken[0].seq > place
    assert f"message {n} was changed" in broken[0].what
    assert broken[0].name in broken[0].what
    assert proved(changed, None).holds


def test_a_changed_last_message_is_named_by_what_the_export_says(path: Path, tmp_path: Path) -> None:
    """It has none behind it."""
    source, _ = n_of(path, KV, seqs(path, KV)[-1])
    place = seqs(path, KV, source)[-1]
    proof = proved(tampered(path, tmp_path / "it", at(KV, place, other_block)))
    assert [(each.kind, each.source, each.seq) for each in proof.breaks] == [("last", source, place)]


def test_a_last_message_that_is_gone_is_named(path: Path, tmp_path: Path) -> None:
    """The export says how far each source went."""
    source, n = n_of(path, KV, seqs(path, KV)[-1])
    gone = without(path, tmp_path / "it", {(KV, seqs(path, KV, source)[-1])})
    with ArchiveReader.open(path) as archive:
        heads = archive.contents.heads
    with ArchiveReader.open(gone) as archive:
        mended = structs.replace(archive.contents, heads=heads)
    with Recording.open(gone, KEY) as recording:
        recording.archive.contents = mended
        proof = prove(recording)
    assert [(each.kind, each.source) for each in proof.breaks] == [("last", source)]
    assert f"message {n} is" in proof.breaks[0].what


def test_chains_sealed_with_another_key_are_refused(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the deployment's key nothing follows; with the other one the file is another deployment's. One process says
    so, or another beside it."""
    changed = tampered(path, tmp_path / "it", at(KV, 40, other_block), rechain_key=OTHER_KEY.chain_key)
    proof = proved(changed)
    assert not proof.holds
    assert proof.broken > 100
    assert {each.kind for each in proof.breaks} <= {"changed", "witness", "last"}
    assert (proof.breaks[0].kind, proof.breaks[0].n) == ("changed", 0)
    assert proof.foreign
    assert not proved(path).foreign
    monkeypatch.setattr(partition, "SHARE_MIN", 1)
    for jobs in (1, 2):
        with Recording.open(changed, KEY) as recording, pytest.raises(Refused, match="sealed again with another key"):
            verify(recording, jobs=jobs)


def test_chains_sealed_with_the_right_key_hold_but_for_witnesses(path: Path, tmp_path: Path) -> None:
    """Whoever has the key can rewrite history; replicas that told what they had read contradict him."""
    changed = tampered(path, tmp_path / "it", at(KV, 5, other_block), rechain_key=KEY.chain_key)
    proof = proved(changed)
    assert {each.kind for each in proof.breaks} == {"witness"}
    assert "read another message" in proof.breaks[0].what


def test_a_missing_message_is_named_and_its_place_known(path: Path, tmp_path: Path) -> None:
    """By its number, with and without the key; where it stood is a hole."""
    place = seqs(path, KV)[60]
    source, n = n_of(path, KV, place)
    following = next(seq for seq in seqs(path, KV, source) if seq > place)
    gone = without(path, tmp_path / "it", {(KV, place)})
    for key in (KEY, None):
        proof = proved(gone, key)
        missing = [each for each in proof.breaks if each.kind == "missing"]
        assert [(each.source, each.n, each.seq) for each in missing] == [(source, n, following)]
        (gap,) = proof.gaps.all
        assert (gap.kind, gap.source, gap.n_from, gap.n_to) == ("deleted", source, n, n)
        assert (gap.after, gap.noticed) == (place, following)
    with Recording.open(gone, KEY) as recording:
        assert [gap.after for gap in gaps_of(recording).all] == [place]
    with Recording.open(path, KEY) as recording:
        assert not gaps_of(recording).all


def test_a_message_that_nothing_follows_is_a_hole(path: Path, tmp_path: Path) -> None:
    """Nobody's chain tells whose it was."""
    gone = without(path, tmp_path / "it", {(LOAD, seqs(path, LOAD)[-1])})
    proof = proved(gone)
    (gap,) = proof.gaps.all
    assert (gap.kind, gap.source, gap.messages, gap.noticed) == ("deleted", None, 1, None)


def test_what_retention_took_is_a_gap_and_no_break(path: Path, tmp_path: Path) -> None:
    """Every source's beginning is cut off, and says so."""
    cut = without(path, tmp_path / "it", set(), {KV: 50, LOAD: 8, ROUTING: 30})
    proof = proved(cut)
    assert proof.holds
    assert {gap.kind for gap in proof.gaps.all} == {"cut"}
    assert {gap.stream for gap in proof.gaps.all} == {KV, LOAD, ROUTING}
    assert all(gap.n_from == 0 and gap.after == 1 for gap in proof.gaps.all)


def test_what_is_no_message_and_what_is_signed_by_another_is_named(path: Path, tmp_path: Path) -> None:
    """And counts for nobody's chain."""
    first, second = seqs(path, KV)[30], seqs(path, KV)[31]

    def spoil(record: Record) -> Record:
        if (record.stream, record.seq) == (KV, first):
            return record._replace(payload=b"no message")
        if (record.stream, record.seq) == (KV, second):
            return event_changed(record, lambda it: structs.replace(it, source="ee" * 8))
        return record

    proof = proved(tampered(path, tmp_path / "it", spoil))
    assert {("unreadable", first), ("foreign", second)} <= {(each.kind, each.seq) for each in proof.breaks}


def test_what_is_said_again_otherwise_is_named(path: Path, tmp_path: Path) -> None:
    """The same number with other words is a break; the same message once more is not."""
    source, _ = n_of(path, KV, seqs(path, KV)[50])
    places = seqs(path, KV, source)
    with ArchiveReader.open(path) as archive:
        earlier, last = archive.at(KV, places[3]), archive.at(KV, places[-1])
    assert earlier is not None
    assert last is not None

    def again(payload: bytes) -> Path:
        with ArchiveReader.open(path) as source:
            writer = ArchiveWriter(tmp_path / "it", "bench", KEY.chain_key, "x", 1)
            for stream in source.streams:
                span = source.span(stream)
                writer.open(stream, span.epoch, 1, 1)  # type: ignore[arg-type]
                for record in source.read(stream):
                    writer.add(record)
                if stream == KV:
                    assert last is not None
                    writer.add(last._replace(seq=StreamSeq(span.last_seq + 1), payload=payload))
            writer.finish(writer.contents(0, 1))
        return tmp_path / "it"

    assert proved(again(last.payload)).holds
    assert [each.kind for each in proved(again(earlier.payload)).breaks] == ["twice"]


# --- snapshots ---------------------------------------------------------------------------------------------------


async def ranged(tmp_path: Path, change: Callable[[MadeLog], object] = lambda _: None) -> Path:
    """An export that begins with a snapshot."""
    it = await made_log()
    await it.grow()
    await it.snapshot()
    await it.grow()
    change(it)
    ends = {stream: (await it.log.state(stream)).last_seq for stream in (KV, LOAD, ROUTING)}
    wanted = Range({stream: StreamSeq(seq) for stream, seq in ends.items()})
    return await archived(it.log, "test", MADE_KEY, tmp_path / "log", wanted)


async def test_a_range_is_proved_from_its_snapshot_on(tmp_path: Path) -> None:
    """The snapshot has the head of every chain; a first message that was changed is named by the second."""
    path = await ranged(tmp_path)
    with ArchiveReader.open(path) as archive:
        assert archive.span(KV).first_seq > 1
        first = next(archive.read(KV))
    proof = proved(path, MADE_KEY)
    assert (proof.holds, proof.origin, proof.gaps.all) == (True, True, [])
    changed = proved(tampered(path, tmp_path / "it", at(KV, first.seq, other_block)), MADE_KEY)
    assert [(each.kind, each.source, each.n) for each in changed.breaks] == [
        ("changed", A, decode_message(first.payload).n)
    ]


async def test_a_snapshot_that_holds_something_else_is_named(tmp_path: Path) -> None:
    """Its content is sealed with the key, too."""
    path = await ranged(tmp_path)
    with Recording.open(path, MADE_KEY) as recording:
        saved = recording.archive.contents.snapshots[0]
        manifest = structs.replace(saved.manifest, checksum="00" * 16)
        snapshots = [structs.replace(saved, manifest=manifest)]
        recording.archive.contents = structs.replace(recording.archive.contents, snapshots=snapshots)
        proof = prove(recording)
    assert [each.kind for each in proof.breaks] == ["snapshot"]
    assert manifest.id in proof.breaks[0].what


async def test_a_replica_whose_journal_was_never_told_is_named(tmp_path: Path) -> None:
    """It was found lost, and its last words are in no log, if there were any; one that left said all."""
    it = await made_log()
    await it.grow()
    lost = Speaker(ROUTING, f"{R}-lost", about=R).say(ReplicaLost(by="x", reason="silent"))
    last = await it.write(lost)
    path = await archived(it.log, "test", MADE_KEY, tmp_path / "log")
    proof = proved(path, MADE_KEY)
    assert proof.holds
    (untold,) = proof.untold
    assert (untold.kind, untold.source, untold.noticed, untold.messages) == ("untold", R, last, 0)
    assert "router-0" in untold.text
    assert B not in untold.text


def test_reports_are_found_by_their_name() -> None:
    """What is searched for in the bytes of a message is what stands there."""
    assert ReplicaReported.__name__.encode() == b"ReplicaReported"


async def test_a_snapshot_whose_manifest_names_another_place_is_named_and_no_start(tmp_path: Path) -> None:
    """No key seals a manifest: one without a cursor would lie before every decision. Its content tells its place."""
    with Recording.open(await ranged(tmp_path), MADE_KEY) as recording:
        saved = recording.archive.contents.snapshots[0]
        cursor = {StreamName(name): StreamSeq(at.seq) for name, at in saved.manifest.cursor.items()}
        assert recording.state_before(cursor).cursor
        for forged in ({}, {name: structs.replace(at, seq=at.seq - 1) for name, at in saved.manifest.cursor.items()}):
            manifest = structs.replace(saved.manifest, cursor=forged)
            snapshots = [structs.replace(saved, manifest=manifest)]
            recording.archive.contents = structs.replace(recording.archive.contents, snapshots=snapshots)
            assert not recording.state_before(cursor).cursor
            kinds = {each.kind for each in prove(recording).breaks}
            assert "snapshot" in kinds
