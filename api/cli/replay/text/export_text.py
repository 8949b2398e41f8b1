"""The content of an export, as JSON with stable keys, and as one line with warnings behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from api.cli.options import RecordingRange
from api.cli.quantities import bytes_text, count_text, number_text, plural
from api.cli.renderer import WARNING, Mark, Text
from core.event_json import time_text
from replay.excerpt.excerpt_export import ExcerptResult
from replay.redact.redaction import RedactionResult
from streams.archive.archive_export import ExportedRange
from streams.archive.archive_format import Contents
from streams.archive.archive_reader import ArchiveReader


class ExportedStream(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of it."""

    first_seq: int
    """From where on it holds all that the log had."""
    last_seq: int
    messages: int


class ExportSummary(msgspec.Struct, frozen=True, kw_only=True, rename={"start": "from", "end": "to"}):
    """See the module's text."""

    file: str
    size_bytes: int
    messages: int
    start: str | None
    """As asked, else when its oldest message was stored; null if it has none."""
    end: str | None
    streams: dict[str, ExportedStream]
    snapshots: list[str]
    """Ids, oldest first."""
    ranged: bool
    """True if a start was given."""
    base: str | None
    """The snapshot that the range begins with; null if it begins where the log does."""
    base_time: str | None
    cut: dict[str, int]
    """Streams without their head, which retention took and no snapshot has, with their first sequences."""
    redacted: bool
    names_replaced: int
    foreign_request_ids: int
    """Request ids in it that clients chose; counted when it is redacted."""
    key_included: bool = False
    """Never: the key stays with the deployment."""
    warnings: list[str]
    took_s: float
    request: str | None = None
    """The request to which it was cut; null for a range."""
    decisions: int | None = None
    """Those of this request with their states."""


def summarize_export(
    file: Path,
    draft: Path,
    range_: RecordingRange,
    archived: ExportedRange,
    done: RedactionResult | None,
    took_s: float,
    cut: ExcerptResult | None = None,
) -> ExportSummary:
    """The content of the draft, which is read once from end to end. Corrupt if the disk gives back other bytes than
    were written."""
    with ArchiveReader.open(draft) as archive:
        for _ in archive.check():
            pass
        contents = archive.contents
    start, end = _range(contents, range_)
    return ExportSummary(
        file=str(file),
        size_bytes=draft.stat().st_size,
        messages=contents.messages,
        start=start,
        end=end,
        streams=_streams(contents),
        snapshots=[saved.manifest.id for saved in contents.snapshots],
        ranged=range_.start is not None,
        base=None if archived.base is None else archived.base.id,
        base_time=None if archived.base is None else time_text(archived.base.made_ms),
        cut={str(stream): first for stream, first in archived.cut.items()},
        redacted=contents.redacted,
        names_replaced=0 if done is None else done.names,
        foreign_request_ids=0 if done is None else done.foreign_requests,
        warnings=[
            *_cut(archived, contents),
            *(() if done is None else _left(done)),
            *(() if cut is None else _of_excerpt(cut)),
        ],
        took_s=took_s,
        request=None if cut is None else cut.request,
        decisions=None if cut is None else cut.decisions,
    )


def export_text(found: ExportSummary) -> Text:
    """One line, then one per warning."""
    between = f", {found.start} to {found.end}" if found.start is not None else ""
    if found.base is not None:
        between += f" with all since the snapshot before (of {found.base_time})"
    elif found.ranged:
        between += " with all that the log has before, since no snapshot lies between"
    last = (
        f"{count_text(found.names_replaced, 'name')} replaced, sealed with a key of its own, which proves no origin"
        if found.redacted
        else "the deployment's key stays behind: with a copy of it, --key-file proves this file elsewhere"
    )
    if found.request is not None:
        between = f", request {found.request} with {count_text(found.decisions or 0, 'decision')}"
        if not found.redacted:
            last = (
                "sealed with the deployment's key, which stays behind: with a copy of it, --key-file proves this file"
            )
    messages, snapshots = count_text(found.messages, "message"), count_text(len(found.snapshots), "snapshot")
    yield f"{found.file}: {messages} in {bytes_text(found.size_bytes)}{between}, {snapshots}; {last}"
    yield from (Mark(f"warning: {warning}", WARNING) for warning in found.warnings)


def _range(contents: Contents, range_: RecordingRange) -> tuple[str | None, str | None]:
    if not contents.blocks:
        return None, None
    first_ms, last_ms = min(b.first_ms for b in contents.blocks), max(b.last_ms for b in contents.blocks)
    from_ms = first_ms if range_.start is None else contents.from_ms
    return time_text(from_ms), time_text(last_ms if range_.end is None else contents.to_ms)


def _streams(contents: Contents) -> dict[str, ExportedStream]:
    return {
        stream: ExportedStream(
            first_seq=span.begin,
            last_seq=span.last_seq,
            messages=sum(block.messages for block in contents.blocks if block.stream == stream),
        )
        for stream, span in contents.streams.items()
    }


def _cut(archived: ExportedRange, contents: Contents) -> Iterator[str]:
    if archived.cut:
        begins = ", ".join(f"{stream} begins at {number_text(first)}" for stream, first in archived.cut.items())
        first = contents.snapshots[0].manifest if contents.snapshots else None
        which = f"decisions before the snapshot of {time_text(first.made_ms)}" if first else "the decisions in it"
        yield (
            f"retention took the head of the log ({begins}), and no snapshot lies before what is left: {which} can be "
            "shown, but not made again"
        )


def _of_excerpt(cut: ExcerptResult) -> Iterator[str]:
    if cut.different:
        count = cut.different
        follow = plural(count, "does not follow", "do not follow")
        yield f"{count_text(count, 'decision')} {follow} from the log: the file shows how"
    yield from (f"a decision can be shown, and was not judged: {why}" for why in cut.not_judged)
    if cut.left_out:
        left = (
            f"{count_text(cut.left_out, 'message')} beside the request {plural(cut.left_out, 'was', 'were')} left out"
        )
        yield f"{left}, so that the file stays small: `explain` may name fewer other requests"
    if not cut.is_sealed:
        yield "the deployment's key was not at hand: the file has no seal, and nothing proves how it was cut"


def _left(done: RedactionResult) -> Iterator[str]:
    if done.foreign_requests:
        least = "at least " if done.foreign_is_bound else ""
        count = done.foreign_requests
        were = plural(count, "request id was", "request ids were")
        they = plural(count, "it stays: check that it names", "they stay: check that they name")
        yield f"{least}{number_text(count)} {were} chosen by clients (ours are req-…): {they} no person"
    if done.dropped_events:
        count = done.dropped_events
        were, them = plural(count, "was", "were"), plural(count, "it", "them")
        left = f"{count_text(count, 'event')} of a newer program {were} left out"
        yield f"{left}: this one cannot tell the names in {them}"
    if done.dropped_snapshots:
        count = len(done.dropped_snapshots)
        were = plural(count, "was", "were")
        yield f"{count_text(count, 'snapshot')} of another program's folds {were} left out, for the same reason"
    if not done.keyed:
        yield "the deployment's key was not at hand: a message that somebody changed is sealed as if it were right"
