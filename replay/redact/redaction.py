"""Redaction: an archive without names, of which everything that was decided can still be made again.

1. Replaced are the names of workers, replicas, tenants, groups and of the namespace, the same by the same everywhere;
   addresses and free texts are gone. Random ids, models and request ids stay: decisions and their digests rest on them.
2. Reports of digests (`ReplicaReported`, `DivergenceFound`, `kv_head`) are about messages that are other ones now;
   they are left out, and so are events that this program does not know. Messages without events stay in their place,
   and a decision names the new place of the decision that it continues.
3. The chains are sealed anew with a fresh key that stands in the contents: they prove order, not origin.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from core.codec import CHAIN_KEY_BYTES, JSON_START, Message, encode_event, encode_message, encode_readable
from core.errors import Corrupt
from core.events import Event, PromptBase, RequestRouted, UnknownEvent
from core.ids import Epoch, SourceId
from core.snapshot_manifest import Manifest
from core.subjects import ROUTING, owner, subject
from replay.redact.pseudonyms import FOREIGN_KEPT_MAX, TEXT, Pseudonyms
from replay.redact.redacted_snapshot import redact_snapshot
from replay.redact.redaction_rules import redact_event
from replay.redact.resealing import Resealing
from streams.archive.archive_export import Progress
from streams.archive.archive_format import Excerpt, PromptColumn
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from streams.log import Record


class RedactionResult(NamedTuple):
    """Counts of a redaction."""

    names: int
    """Names that were replaced."""
    foreign_requests: int
    """Request ids in it that this program did not choose: they may tell something, and stay."""
    dropped_events: int
    """Events of kinds that this program does not know."""
    dropped_snapshots: tuple[str, ...]
    """Ids of those that this program cannot read."""
    keyed: bool
    """The deployment's key was given."""

    @property
    def foreign_is_bound(self) -> bool:
        """There are at least so many foreign request ids."""
        return self.foreign_requests >= FOREIGN_KEPT_MAX


def redact(
    source: ArchiveReader,
    path: Path,
    old_key: bytes = b"",
    progress: Progress = lambda _done, _of: None,
    *,
    program: str,
    made_ms: int,
) -> RedactionResult:
    """The file is the archive without names. With the deployment's chain key, gaps that only a digest shows stay
    gaps. Corrupt or CallerError if the source is damaged or the file cannot be written: then there is none."""
    writer = ArchiveWriter(path, TEXT, secrets.token_bytes(CHAIN_KEY_BYTES), program, made_ms)
    try:
        redaction = Redaction(source, writer, old_key)
        redaction.run(progress)
        was = source.contents
        contents = writer.contents(was.from_ms, was.to_ms, redacted=True)
        if was.excerpt is not None:
            contents = contents.excerpted(redaction.excerpt(was.excerpt), writer.chain_key)
        writer.finish(contents)
    except BaseException:  # of any kind: half a file is of no use
        writer.abandon()
        raise
    return redaction.done


class Redaction:
    """One run over an archive; see the module's text."""

    def __init__(self, source: ArchiveReader, writer: ArchiveWriter, old_key: bytes) -> None:
        self.names = Pseudonyms()
        self._source = source
        self._writer = writer
        self._old_key = old_key
        self._resealing = Resealing(source, old_key, writer.chain_key)
        self._dropped_events = 0
        self._dropped_snapshots: list[str] = []
        self._moved: dict[int, tuple[int, ...]] = {}
        """By sequence of the routing stream: the places of events that were left out before a decision."""

    def __repr__(self) -> str:
        return f"<Redaction of {self._source!r}, {self.names!r}>"

    @property
    def done(self) -> RedactionResult:
        """Counts so far."""
        foreign = len(self.names.foreign)
        return RedactionResult(
            self.names.replaced,
            foreign,
            self._dropped_events,
            tuple(self._dropped_snapshots),
            bool(self._old_key),
        )

    def excerpt(self, excerpt: Excerpt) -> Excerpt:
        """The same excerpt in the redacted log; reasons stay, and the sentences behind them go."""
        decisions = []
        for each in excerpt.decisions:
            place = each.place - bisect_left(self._moved.get(each.seq, ()), each.place)
            decisions.append(each._replace(place=place, why=self.names.text(each.why)))
        return replace(excerpt, decisions=decisions)

    def run(self, progress: Progress) -> None:
        """The writer has everything: messages first, since they tell on which chains the snapshots stand."""
        done, total = 0, self._source.messages
        for stream in self._source.streams:
            span = self._source.span(stream)
            self._writer.open(stream, Epoch(span.epoch), span.first_seq, span.log_first_seq)
            for record, payload in self._resealing.stream(stream, self._sealed):
                where = subject(TEXT, stream, self.names.id(owner(record.subject)))
                self._writer.add(record._replace(subject=where, payload=payload))
                done += 1
                progress(done, total)
            self._writer.reached(stream, span.last_seq)
        for manifest in self._source.snapshots():
            self._snapshot(manifest)
        self._writer.add_columns([PromptColumn(*place, hashes) for place, hashes in self._source.columns.items()])

    def _sealed(self, record: Record, message: Message, prev: bytes) -> bytes:
        """The message without names, in the form that it had."""
        source, events = SourceId(self.names.id(message.source)), self._events(record, message)
        if record.payload[:1] == JSON_START:
            return encode_readable(source, message.n, prev, message.sent_ms, events)
        return encode_message(source, message.n, prev, message.sent_ms, [encode_event(event) for event in events])

    def _events(self, record: Record, message: Message) -> list[Event]:
        self._dropped_events += sum(isinstance(event, UnknownEvent) for event in message.events)
        redacted = [redact_event(event, self.names) for event in message.events]
        if record.stream == ROUTING:
            left_out = tuple(place for place, event in enumerate(redacted) if event is None)
            if left_out and any(isinstance(event, RequestRouted) for event in redacted[left_out[0] :]):
                self._moved[record.seq] = left_out
        return [self._with_base(event) for event in redacted if event is not None]

    def _with_base(self, event: Event) -> Event:
        """A decision names the place that the decision which it continues has now."""
        if not isinstance(event, RequestRouted) or not isinstance(event.base, PromptBase):
            return event
        before = bisect_left(self._moved.get(event.base.seq, ()), event.base.place)
        return replace(event, base=replace(event.base, place=event.base.place - before)) if before else event

    def _snapshot(self, manifest: Manifest) -> None:
        content = self._source.snapshot(manifest)
        passed = self._resealing.passed(manifest.id)
        try:
            fresh = redact_snapshot(manifest, content, self.names, passed, self._writer.chain_key)
        except Corrupt:  # what it says cannot be told from its names
            self._dropped_snapshots.append(manifest.id)
        else:
            self._writer.add_snapshot(*fresh)
