"""Redaction, one event and one message at a time: what stays of each, and what of a broken chain."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from core.codec import CHAIN_START, decode_message, digest, encode_event, encode_message
from core.events import (
    EVENT_TYPES,
    AdapterEvicted,
    AdapterLoaded,
    AdapterUnloaded,
    Event,
    LoadReported,
    PoolJoined,
    SettingsChanged,
    WorkerJoined,
    WorkerLeft,
    WorkerLost,
)
from core.events.routing import HELD, NO_WORKER, TURNED_AWAY, WAITS_FOR
from core.ids import Epoch, SourceId, StreamName, StreamSeq
from core.settings import RoutingSettings
from core.snapshot_manifest import Manifest
from core.subjects import ROUTING, kv_stream, subject
from projections.folds.snapshot import cursor_of, encode
from projections.folds.state import State
from replay.recording.recording import Recording
from replay.redact.pseudonyms import Pseudonyms
from replay.redact.redaction import RedactionResult, redact
from replay.redact.redaction_rules import redact_event
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from streams.log import Record
from tests.projections.facts import joined, load, pool_joined, reads, routed, stored, worker_id
from tests.projections.speaker import CHAIN_KEY, Speaker
from tests.replay.tampered import event_changed, tampered

SECRET = "mr-smith"
KV = kv_stream(0)
A, B = worker_id(1), worker_id(2)
STAYS = {
    "model": "decisions rest on it",
    "adapter": "decisions rest on it",
    "request": "decisions rest on it",
    "worker": "a random id",
    "requests": "request ids",
    "models": "models",
    "reasons": "of LOCAL_REASONS",
    "role": "decode or prefill",
    "engine": "a program and its version",
    "version": "a program's",
    "tier": "of TIERS",
    "policy": "of POLICIES",
    "digest": "of a decision",
    "session": "a keyed hash; decisions rest on it",
    "session_parent": "a keyed hash",
}
"""Texts in events that redaction leaves as they are, and why; every other one must be gone."""


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=EVENT_TYPES.keys())
def test_no_text_stays_that_need_not(kind: type[Event]) -> None:
    """A field that is new in an event is filled in here by itself, and fails until somebody decided about it."""
    hints = get_type_hints(kind)
    names = [name for name in kind.__struct_fields__ if name not in {"v", "base"}]  # numbers and hashes alone
    adapts = kind in {AdapterLoaded, AdapterEvicted, AdapterUnloaded}  # their name is in the id that decisions rest on
    event = kind(**{name: filled("adapter" if adapts and name == "name" else name, hints[name]) for name in names})
    after = redact_event(event, Pseudonyms())
    if after is not None:
        assert SECRET.encode() not in encode_event(after)


def filled(name: str, hint: Any) -> Any:
    """A value of the type, with the secret in every text that does not stay."""
    text = "plain" if name in STAYS else SECRET
    if isinstance(hint, types.UnionType):
        hint = get_args(hint)[0]
    if hint is str:
        return text
    if hint is bytes:
        return b""
    if hint in {int, bool}:
        return hint(0)
    if getattr(hint, "__origin__", hint) is dict:
        return {"key": text} if get_args(hint)[1] is Any else {}
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        inner = get_type_hints(hint)
        return hint(**{name: filled(name, inner[name]) for name in hint.__struct_fields__})
    assert hint.__origin__ is tuple, f"{name}: {hint}"
    return ()


def test_what_stays_of_settings() -> None:
    """All numbers, and the policy: decisions go by them. A text of a later program's does not."""
    settings = RoutingSettings(policy="round-robin", tie_margin_m=500).to_mapping()
    after = redact_event(SettingsChanged(revision=3, settings={**settings, "later": SECRET}), Pseudonyms())
    assert after == SettingsChanged(revision=3, settings={**settings, "later": "redacted"})


@pytest.mark.parametrize("why", [*WAITS_FOR, NO_WORKER, HELD, *TURNED_AWAY])
def test_why_requests_wait_stays(why: str) -> None:
    """It names nobody."""
    assert Pseudonyms.text(why) == why


@pytest.mark.parametrize(
    ("request_id", "ours"),
    [
        ("req-0123456789abcdef", True),
        ("req-0123456789abcdef.1", True),
        ("req-003644", True),
        ("req-003644.1", True),
        ("req-3644", False),
        ("req-003644-mr-smith", False),
        ("req-0123456789abcdef.127", True),
        ("req-0123456789abcdef.0a1b2c3d", True),
        ("req-0123456789abcdef.12.0a1b2c3d", True),
        ("req-0123456789abcdef.mr-smith", False),
        ("req-0123456789abcdef.1.mr-smith", False),
        ("mr-smith", False),
    ],
)
def test_ids_of_ours_are_not_warned_of(request_id: str, ours: bool) -> None:
    """Nor those of a call's further answers, nor of one that is under way twice."""
    names = Pseudonyms()
    names.note([request_id])
    assert names.foreign == (set() if ours else {request_id})


def test_one_name_is_one_name() -> None:
    """Wherever it stands; and nothing is not a name."""
    names = Pseudonyms()
    assert [names.of("worker", name) for name in ("b", "a", "b", "")] == ["worker-1", "worker-2", "worker-1", ""]
    assert names.of("tenant", "a") == "tenant-1"
    assert names.id("ab" * 8) == "ab" * 8
    assert names.id(f"{'ab' * 8}-lost") == f"{'ab' * 8}-lost"
    assert names.id(SECRET) == "unknown-1"
    assert names.author("contrail snapshots take") == "contrail snapshots take"
    assert (names.author("frontend-0"), names.of("replica", "frontend-0")) == ("replica-1", "replica-1")
    assert names.tombstone("lost: no lease, no answer") == "lost: no lease, no answer"
    assert names.tombstone(f"left: told by {SECRET}") == "left: redacted"
    assert names.tombstone(SECRET) == "redacted"


# --- whole archives --------------------------------------------------------------------------------------------


def written(path: Path, records: list[Record], *states: State) -> Path:
    """An archive of one stream."""
    writer = ArchiveWriter(path, SECRET, CHAIN_KEY, "contrail test", 1)
    for number, state in enumerate(states):
        content = b"".join(encode(state))
        writer.add_snapshot(manifest_of(state, content, f"{number}"), content)
    writer.open(records[0].stream, Epoch(1), 1, 1)
    for record in records:
        writer.add(record)
    writer.finish(writer.contents(0, 0))
    return path


def manifest_of(state: State, content: bytes, id: str) -> Manifest:
    return Manifest(
        id=id, fold_version=2, made_ms=1, by=SECRET, fence=1, cursor=cursor_of(state), digest=f"{state.digest:016x}",
        incomplete=0, chunks=1, first_seq=1, size_bytes=len(content), checksum=digest(content, CHAIN_KEY).hex(),
    )  # fmt: skip


def done(path: Path, target: Path, key: bytes = CHAIN_KEY) -> RedactionResult:
    with ArchiveReader.open(path) as source:
        return redact(source, target, key, program="contrail test", made_ms=1)


def at(seq: int, owner: str, payload: bytes, stream: StreamName = KV) -> Record:
    return Record(stream, StreamSeq(seq), seq, subject(SECRET, stream, owner), payload)


def everything(path: Path) -> bytes:
    with ArchiveReader.open(path) as archive:
        parts = [archive.contents.to_bytes(), *(archive.snapshot(manifest) for manifest in archive.snapshots())]
        parts += [record.subject.encode() + record.payload for s in archive.streams for record in archive.read(s)]
    return b"".join(parts)


def test_strangers_and_rubbish_are_gone(tmp_path: Path) -> None:
    """What is no message, what a later program said, who calls himself something: their places stay, no more."""
    a, b, stranger = Speaker(KV, A), Speaker(KV, B), Speaker(KV, SECRET)
    later = encode_message(SourceId(A), 2, CHAIN_START, 0, [msgspec.msgpack.encode({"type": "Later", "who": SECRET})])
    records = [
        at(1, A, a.say(joined(SECRET), stored(1)).payload),
        at(2, SECRET, stranger.say(joined(), stored(2)).payload),
        at(3, A, SECRET.encode()),
        at(4, A, a.say(WorkerLost(by=SECRET, reason=SECRET)).payload),
        at(5, A, later),
        at(6, A, encode_message(SourceId(A), 3, CHAIN_START, 0, [])[:-1] + b"\x91\x80"),
        at(7, SECRET, stranger.say(stored(3)).payload),
        at(8, B, b.say(joined("b"), WorkerLeft(reason=f"{SECRET} asked for it")).payload),
    ]
    state = State(CHAIN_KEY)
    state.open(KV, Epoch(1))
    for record in records:
        state.apply(KV, record.seq, record.subject, record.payload)
    path = written(tmp_path / "it", records, state)
    assert everything(path).count(SECRET.encode()) > 10
    found = done(path, tmp_path / "r")
    assert SECRET.encode() not in everything(tmp_path / "r")
    assert (found.dropped_events, found.dropped_snapshots) == (1, ())
    with ArchiveReader.open(tmp_path / "r") as archive:
        assert [record.seq for record in archive.read(KV)] == list(range(1, 9))
        assert [record.seq for record in archive.read(KV) if not record.payload] == [3, 6]


def test_a_snapshot_of_another_fold_is_left_out(tmp_path: Path) -> None:
    """And counted: this program cannot tell the names in it."""
    a = Speaker(KV, A)
    state = State(CHAIN_KEY)
    path = written(tmp_path / "it", [at(1, A, a.say(joined()).payload)], state)
    with ArchiveReader.open(path) as archive:
        manifest = archive.snapshots()[0]
        content = archive.snapshot(manifest).replace(b"CTRLSNAP", b"ctrlsnap")
    writer = ArchiveWriter(tmp_path / "other", SECRET, CHAIN_KEY, "contrail test", 1)
    writer.add_snapshot(manifest, content)
    writer.finish(writer.contents(0, 0))
    assert done(tmp_path / "other", tmp_path / "r").dropped_snapshots == ("0",)
    with ArchiveReader.open(tmp_path / "r") as archive:
        assert archive.snapshots() == []


def test_a_gap_stays_a_gap(tmp_path: Path) -> None:
    """A message that is missing; one that was changed, which only the key tells; and a repeat stays a repeat."""
    a = Speaker(KV, A)
    payloads = [a.say(joined(), stored(0)).payload, *(a.say(stored(number)).payload for number in range(1, 8))]
    kept = [0, 1, 1, 3, 4, 4, 5, 6, 7]  # 2 is missing
    records = [at(seq, A, payloads[number]) for seq, number in enumerate(kept, 1)]
    path = written(tmp_path / "it", records)

    def change(record: Record) -> Record:
        if record.seq != 7:
            return record
        return event_changed(record, lambda message: message.__class__(
            source=message.source, n=message.n, prev=message.prev, sent_ms=message.sent_ms, events=(stored(99),)
        ))  # fmt: skip

    tampered(path, tmp_path / "changed", change)
    for name, source, key, gaps in (
        ("one", path, CHAIN_KEY, 1),
        ("two", tmp_path / "changed", CHAIN_KEY, 2),
        ("keyless", tmp_path / "changed", b"", 1),
    ):
        done(source, tmp_path / name, key)
        with Recording.open(tmp_path / name) as recording:
            assert recording.state_at(recording.end).gaps_found == gaps
            again = [record.payload for record in recording.archive.read(KV)]
            assert again[1] == again[2]
            assert again[4] == again[5]


def test_a_range_goes_on_from_what_is_before_it(tmp_path: Path) -> None:
    """The first message of a source names the digest that it named: the snapshot before has it."""
    a = Speaker(ROUTING, "ee" * 8)
    a.say(routed("r0", A))
    said = [a.say(routed(f"r{number}", A)) for number in (1, 2)]
    records = [at(seq, "ee" * 8, it.payload, ROUTING) for seq, it in enumerate(said, 2)]
    done(written(tmp_path / "it", records), tmp_path / "r")
    with ArchiveReader.open(tmp_path / "r") as archive:
        first, second = [decode_message(record.payload) for record in archive.read(ROUTING)]
        key = bytes.fromhex(archive.contents.chain_key)
        assert first.prev == said[0].message.prev
        (one, _) = archive.read(ROUTING)
        assert second.prev == digest(one.payload, key)
        assert archive.contents.heads[ROUTING]["ee" * 8].n == 2


def test_events_are_what_they_were() -> None:
    """But for names: what folds and people read of a load report and of a worker is there."""
    assert redact_event(load(3), Pseudonyms()) == load(3)
    report = LoadReported(running=1, waiting=2, blocks_used=3, blocks_total=4, kv_n=5, kv_head=b"x" * 16)
    after = redact_event(report, Pseudonyms())
    assert isinstance(after, LoadReported)
    assert (after.kv_n, after.kv_head, after.waiting) == (5, b"", 2)
    names = Pseudonyms()
    pool = redact_event(msgspec.structs.replace(pool_joined("f0" * 8, "0a" * 8, SECRET), name=SECRET), names)
    reader = redact_event(msgspec.structs.replace(joined(SECRET), pools=reads("f0" * 8, SECRET)), names)
    assert isinstance(pool, PoolJoined)
    assert isinstance(reader, WorkerJoined)
    assert (pool.pool, pool.keeper, pool.name, pool.kind) == ("f0" * 8, "0a" * 8, "worker-1", "kind-1")
    assert reader.pools
    assert (reader.pools.ids, reader.pools.kind, reader.name) == (("f0" * 8,), "kind-1", "worker-1")
    who = redact_event(joined(SECRET, model="big"), Pseudonyms())
    assert isinstance(who, WorkerJoined)
    assert (who.name, who.address, who.model, who.engine) == ("worker-1", "", "big", "simulated")
