"""The snapshots as a table, and what of the log's history they cover."""

from __future__ import annotations

from collections.abc import Sequence

from api.amounts import bytes_text, number_text
from api.snapshots.listed import Listed
from api.text_table import text_table
from core.event_json import time_text
from core.snapshot_manifest import Manifest
from streams.snapshot_store import Coverage

HEADS = ("snapshot", "made", "by", "messages", "size", "fold", "digest", "usable")
ALIGN = "<<<>>><<"


def snapshots_text(snapshots: list[Listed], covered: Sequence[Coverage]) -> str:
    """The table, newest first, and the coverage below it."""
    if not snapshots:
        return "\n".join(["there is no snapshot: take one with `contrail snapshots take`", "", *_coverage(covered)])
    return "\n".join([*text_table(HEADS, list(map(_row, snapshots)), ALIGN), "", *_coverage(covered)])


def messages(manifest: Manifest) -> int:
    """How many messages of all streams the snapshot stands for."""
    return sum(at.seq for at in manifest.cursor.values())


def warnings(covered: Sequence[Coverage]) -> list[str]:
    """What of the history is not covered, and what to do."""
    return [
        f"{it.stream}: retention took messages that follow the newest snapshot; take snapshots more often "
        "(log.snapshot_every), or give log.max_bytes more"
        for it in covered
        if it.cut_behind_newest
    ]


def _row(it: Listed) -> tuple[str, ...]:
    manifest = it.manifest
    return (
        manifest.id,
        time_text(manifest.made_ms),
        manifest.by,
        number_text(messages(manifest)),
        bytes_text(manifest.size_bytes),
        str(manifest.fold_version),
        manifest.digest,
        "yes" if it.usable else f"no: {it.why}",
    )


def _coverage(covered: Sequence[Coverage]) -> list[str]:
    rows = [(it.stream, number_text(it.first_seq), number_text(it.last_seq), _replayable(it)) for it in covered]
    lines = text_table(("stream", "oldest", "newest", "replayable"), rows, "<>><")
    return [*lines, *(f"warning: {text}" for text in warnings(covered))]


def _replayable(it: Coverage) -> str:
    if it.replayable_from is None:
        return "not yet: its head was cut and no snapshot lies before what is left"
    if it.snapshot_before:
        return "all that is retained"
    return f"from {it.stream}:{it.replayable_from} on"
