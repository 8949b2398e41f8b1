"""Decisions that continue others: each is verified or named, wherever a log begins, ends, or lacks a message."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from core.codec import Message, decode_message, encode_event, encode_message
from core.event_json import message_lines
from core.events import Event, PromptBase, RequestFinished, RequestPrefilled, RequestRouted, UnknownEvent
from core.events.routing import COMPACT_VERSION, CONTINUED_VERSION, PROGRESS_VERSION, ROUTED_VERSION
from core.ids import StreamSeq
from core.prompt import HASH_BYTES
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.folds.snapshot import SNAPSHOT_VERSION_WITHOUT_POOLS, decode, encode
from replay.explain.explain import explain
from replay.recording import prompt_columns
from replay.recording.moment import AtSequence
from replay.recording.prompt_columns import BaseFault
from replay.recording.recording import Recording
from replay.recording.request_history import PLACES
from replay.redact.redaction import redact
from replay.simulate.simulated_log import KEY
from replay.verify import partition
from replay.verify.verify import VerifyResult, verify
from streams.archive.archive_export import Range, cut
from streams.archive.archive_format import ARCHIVE_VERSION_WITHOUT_EXCERPTS
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from streams.log import Record
from tests.replay.talking import long_talks, simulated, with_snapshot
from tests.replay.tampered import tampered

TALKS, TURNS = 12, 14
SNAPSHOT = 150
"""Sequence of the routing stream behind which the snapshot stands, after the next decision."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of twelve talks on two replicas, with a snapshot in its midst."""
    folder = tmp_path_factory.mktemp("talks")
    path = simulated(folder / "whole", long_talks(TALKS, TURNS))
    with Recording.open(path, KEY) as recording:
        last = next(seq for seq, _, event in decisions(recording) if seq >= SNAPSHOT and event.base is not UNSET)
    return with_snapshot(path, folder / "log", last + 1)


def decisions(recording: Recording) -> list[tuple[int, int, RequestRouted]]:
    """All of the log, with their places."""
    return [
        (record.seq, place, event)
        for record, message in recording.messages(ROUTING)
        for place, event in enumerate(message.events)
        if isinstance(event, RequestRouted)
    ]


def verified(path: Path, *, start: int = 1, jobs: int = 1, keyed: bool = True) -> VerifyResult:
    with Recording.open(path, KEY if keyed else None) as recording:
        return verify(recording, start, jobs=jobs)


def changed(
    path: Path,
    out: Path,
    change: Callable[[int, int, RequestRouted], Event],
    progress_version: Callable[[int], int] = lambda _: PROGRESS_VERSION,
) -> Path:
    """The log with each decision as `change` gives it back, and first tokens and ends in the versions for their
    messages, its chains sealed anew."""

    def event_changed(seq: int, place: int, event: Event | UnknownEvent) -> Event | UnknownEvent:
        if isinstance(event, RequestPrefilled | RequestFinished):
            return replace(event, v=progress_version(seq))
        return change(seq, place, event) if isinstance(event, RequestRouted) else event

    def record_changed(record: Record) -> Record:
        message = decode_message(record.payload)
        events = [event_changed(record.seq, place, event) for place, event in enumerate(message.events)]
        if record.stream != ROUTING or events == list(message.events):
            return record
        encoded = [encode_event(event) for event in events]  # type: ignore[arg-type]  # all are known
        payload = encode_message(message.source, message.n, message.prev, message.sent_ms, encoded)
        return record._replace(payload=payload)

    return tampered(path, out, record_changed, rechain_key=KEY.chain_key)


def test_most_decisions_continue_another_and_all_are_verified(log: Path) -> None:
    with Recording.open(log, KEY) as recording:
        all_of_them = decisions(recording)
        short = [event for _, _, event in all_of_them if isinstance(event.base, PromptBase)]
        assert len(short) > 0.8 * len(all_of_them)
        whole = [recording.columns.of(*each) for each in all_of_them]
        for (_, _, event), hashes in zip(all_of_them, whole, strict=True):
            assert isinstance(hashes, bytes)
            assert len(hashes) == event.prompt_tokens // event.block_size * HASH_BYTES
        owners = {record.seq: record.subject for record, _ in recording.messages(ROUTING)}
        assert any(
            owners[StreamSeq(seq)] != owners[StreamSeq(event.base.seq)] for seq, _, event in all_of_them if event.base
        )
    found = verified(log)
    assert found.complete
    assert (found.verified, found.different) == (found.decisions, 0)
    assert found.decisions == len(all_of_them)


def earlier(event: RequestRouted) -> RequestRouted:
    """The decision as earlier programs wrote it."""
    return replace(event, v=1 if event.base is UNSET else CONTINUED_VERSION)


def one_of_all(seq: int, _place: int, event: RequestRouted) -> RequestRouted:
    """Of three messages, one has decisions of the latest version, one of the one before, one as earlier ones wrote."""
    return [event, replace(event, v=COMPACT_VERSION), earlier(event)][seq % 3]


def test_the_version_of_decisions_makes_no_difference(log: Path, tmp_path: Path) -> None:
    """Logs of earlier versions, of the latest, and of all mixed have the same verdicts, prompts and texts; one that
    changes its version in the middle, too."""
    assert {event.v for _, _, event in decisions_of(log)} == {ROUTED_VERSION}
    old = changed(log, tmp_path / "old", lambda _seq, _place, event: earlier(event), lambda _: 1)
    mixed = changed(log, tmp_path / "mixed", one_of_all, lambda seq: seq % 2 + 1)
    upgraded = changed(
        log,
        tmp_path / "upgraded",
        lambda seq, _place, event: event if seq > SNAPSHOT else replace(event, v=COMPACT_VERSION),
        lambda seq: PROGRESS_VERSION if seq > SNAPSHOT else 1,
    )
    assert {event.v for _, _, event in decisions_of(old)} == {1, CONTINUED_VERSION}
    assert {event.v for _, _, event in decisions_of(mixed)} == {1, CONTINUED_VERSION, COMPACT_VERSION, ROUTED_VERSION}
    assert {event.v for _, _, event in decisions_of(upgraded)} == {COMPACT_VERSION, ROUTED_VERSION}
    for path in (old, mixed, upgraded):
        found, wanted = verified(path), verified(log)
        assert (found.verified, found.different, found.not_judged) == (wanted.verified, 0, {})
        assert found.digest == wanted.digest
        with Recording.open(path, KEY) as recording, Recording.open(log, KEY) as whole:
            assert [*recording.requests.requests] == [*whole.requests.requests]
            for seq, place, event in decisions(recording)[::17]:
                numbered = seq * PLACES + place
                ((_, shown),) = recording.whole_events([numbered])
                ((_, wanted_shown),) = whole.whole_events([numbered])
                assert isinstance(shown, RequestRouted)
                assert replace(shown, v=3) == replace(wanted_shown, v=3)
                found_, wanted_ = (explain(it, event.request).attempts for it in (recording, whole))
                for attempt in (*found_, *wanted_):
                    attempt.concurrent = []  # by the stages of ends, which earlier programs did not write
                assert found_ == wanted_
            assert [*recording.requests.between()] == [*whole.requests.between()]
            for here, there in zip(recording.messages(ROUTING), whole.messages(ROUTING), strict=True):
                assert shown_lines(*here) == shown_lines(*there)


def shown_lines(record: Record, message: Message) -> list[dict[str, object]]:
    """The message as `contrail events` shows it, without stages: earlier programs wrote none."""
    lines = message_lines(ROUTING, record.seq, record.time_ms, message)
    return [{name: value for name, value in line.items() if name != "stages"} for line in lines]


def decisions_of(path: Path) -> list[tuple[int, int, RequestRouted]]:
    with Recording.open(path, KEY) as recording:
        return decisions(recording)


def test_a_chain_of_every_length_is_put_together_from_its_start(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing had been asked for before."""
    monkeypatch.setattr(prompt_columns, "COLUMNS_BYTES", 0)
    with Recording.open(log, KEY) as recording, Recording.open(log, KEY) as other:
        for each in decisions(recording):
            assert recording.columns.of(*each) == other.columns.of(*each)


def test_several_processes_find_the_same(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "SHARE_MIN", 20)
    assert verified(log, jobs=3).digest == verified(log).digest


def test_a_range_has_the_prompts_of_the_decisions_before_it(log: Path, tmp_path: Path) -> None:
    """Cut with a snapshot at its start: all of it is verified. A range of the range has them, too."""
    with ArchiveReader.open(log) as source:
        ranged = exported(source, tmp_path / "range", SNAPSHOT + 20)
    with ArchiveReader.open(ranged) as source:
        assert source.contents.v == ARCHIVE_VERSION_WITHOUT_EXCERPTS
        assert len(source.columns) >= TALKS
        again = exported(source, tmp_path / "again", SNAPSHOT + 40)
    for path, start in ((ranged, SNAPSHOT + 20), (again, SNAPSHOT + 40)):
        assert "base" not in verified(path).not_judged
        found = verified(path, start=start)
        assert (found.verified, found.different, found.not_judged) == (found.decisions, 0, {})
        assert 0 < found.decisions < verified(log).decisions
    with ArchiveReader.open(again) as source:
        assert len(source.columns) >= TALKS


def exported(source: ArchiveReader, path: Path, start: int) -> Path:
    writer = ArchiveWriter(path, "simulated", KEY.chain_key, "contrail test", 1)
    recording = Recording(source, KEY)
    begin = {name: StreamSeq(seq + 1) for name, seq in recording.cursor(AtSequence(ROUTING, StreamSeq(start))).items()}
    asyncio.run(cut(source, writer, Range(begin)))
    writer.finish(writer.contents(1, 2))
    return path


def test_a_snapshot_keeps_what_prompts_in_flight_show(log: Path) -> None:
    """Prompts of which only a few hashes are known make another form of it: earlier programs fold from elsewhere."""
    with ArchiveReader.open(log) as archive:
        (manifest,) = archive.snapshots()
        content = archive.snapshot(manifest)
    state = decode(KEY.chain_key, content)
    assert any(entry.base_blocks for part in state.routing.replicas.values() for entry in part.in_flight.values())
    assert b"".join(encode(state)) == content
    assert (
        msgspec.msgpack.decode(content[16 : 16 + int.from_bytes(content[8:16], "little")])["v"]
        == SNAPSHOT_VERSION_WITHOUT_POOLS
    )


def test_a_redacted_log_is_verified(log: Path, tmp_path: Path) -> None:
    with ArchiveReader.open(log) as source:
        redact(source, tmp_path / "redacted", KEY.chain_key, program="contrail test", made_ms=1)
    found = verified(tmp_path / "redacted", keyed=False)
    assert (found.verified, found.different, found.not_judged) == (found.decisions, 0, {})


def test_without_a_message_the_talks_behind_it_are_named(log: Path, tmp_path: Path) -> None:
    """Its decisions' chains end there; the others are judged."""
    with Recording.open(log, KEY) as recording:
        bases = Counter(event.base.seq for _, _, event in decisions(recording) if isinstance(event.base, PromptBase))
        lost = max(seq for seq in bases if seq < recording.end[ROUTING] // 2)
    path = with_snapshot(log, tmp_path / "lost", SNAPSHOT, without=lost)
    with Recording.open(path, KEY) as recording:
        faults = [recording.columns.of(*each) for each in decisions(recording)]
        missing = [fault for fault in faults if isinstance(fault, BaseFault)]
    assert missing
    assert all(fault.is_missing and f"routing:{lost}+" in fault.text for fault in missing)
    found = verified(path)
    assert found.unaccounted == 0
    assert found.not_judged["base"] + found.not_judged.get("deleted", 0) >= len(missing)
    assert found.verified > 0
    assert not found.different


FORGERIES: dict[str, Callable[[RequestRouted, PromptBase], RequestRouted]] = {
    "another hash": lambda event, base: replace(event, hashes=bytes(8) + event.hashes[8:]),
    "another digest": lambda event, base: replace(event, base=replace(base, column=bytes(16))),
    "another sample": lambda event, base: replace(event, base=replace(base, hashes=bytes(8) + base.hashes[8:])),
    "another place": lambda event, base: replace(event, base=replace(base, place=base.place + 1000)),
    "a decision that it had not read": lambda event, base: replace(
        event, cursor={**event.cursor, ROUTING: (event.cursor[ROUTING][0], base.seq - 1)}
    ),
    "a later decision": lambda event, base: replace(event, base=replace(base, seq=base.seq + 100_000)),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_record_that_contradicts_its_base_is_a_difference(log: Path, tmp_path: Path, forgery: str) -> None:
    """The very record alone: of decisions that continue it, the prompt is not known."""
    target = list[str]()

    def change(seq: int, _place: int, event: RequestRouted) -> Event:
        if not isinstance(event.base, PromptBase):
            return event
        if not target and seq > 60 and event.hashes:
            target.append(event.request)
        return FORGERIES[forgery](event, event.base) if target == [event.request] else event

    found = verified(changed(log, tmp_path / forgery.replace(" ", "-"), change))
    terms = {each.request: each.term for each in found.differences}
    assert [request for request, term in terms.items() if term == "base"] == target


def test_under_approximate_records_stay_whole(tmp_path: Path) -> None:
    path = simulated(tmp_path / "log", long_talks(4, 4), routing=RoutingSettings(policy="approximate"))
    with Recording.open(path, KEY) as recording:
        assert all(event.base is UNSET for _, _, event in decisions(recording))
    assert verified(path).complete
