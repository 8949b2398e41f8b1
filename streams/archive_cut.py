"""Cutting: a range of an archive as an archive of its own, or all of it written again."""

from __future__ import annotations

from core.codec import DIGEST_BYTES
from core.subjects import owner
from streams.archive import Archive
from streams.archive_envelope import envelope
from streams.archive_log import ArchiveLog, ArchiveSnapshots
from streams.archive_writer import ArchiveWriter
from streams.archiving import Archived, Progress, Range, archive


async def cut(
    source: Archive,
    writer: ArchiveWriter,
    wanted: Range = Range(),  # noqa: B008 - immutable
    progress: Progress = lambda _done, _of: None,
    *,
    fold_version: int | None = None,
) -> Archived:
    """As `streams.archiving.archive`, from an archive. A writer without a key gets the heads of chains from what
    follows the range in the source; of a chain that goes on there with a gap it gets none. Corrupt if the source is
    damaged anywhere."""
    for _ in source.check():  # a snapshot that cannot be read is passed over below: here it is damage
        pass
    archived = await archive(
        ArchiveLog(source), ArchiveSnapshots(source), writer, wanted, progress, fold_version=fold_version
    )
    if not writer.chain_key:
        _tell_heads(source, writer)
    return archived


def _tell_heads(source: Archive, writer: ArchiveWriter) -> None:
    for stream in source.streams:
        missing = writer.numbers(stream)
        for name, head in source.contents.heads.get(stream, {}).items():
            if missing.get(name) == head.n:
                writer.tell_head(stream, name, head.digest)
                del missing[name]
        for record in source.read(stream, writer.last_seq(stream) + 1) if missing else ():
            said = envelope(record.payload)
            if said is None or not said.of(owner(record.subject)) or len(said.prev) != DIGEST_BYTES:
                continue
            if missing.get(said.source) == said.n - 1:
                writer.tell_head(stream, said.source, said.prev.hex())
                del missing[said.source]
                if not missing:
                    break
