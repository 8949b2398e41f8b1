"""`contrail export`: the log, or a range of it, in one file that needs no server to be read."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from api.cli.options import MOMENT_HELP, RecordingRange
from api.cli.output import print_result, show_progress
from api.cli.replay.recording_copy import program
from api.cli.replay.recording_source import RecordingSource, recording_options
from api.cli.replay.text.export_text import export_text, summarize_export
from api.config.data_folder import draft
from core.clock import Clock, SystemClock
from replay.recording.moment import parse_moment
from replay.redact.redaction import RedactionResult, redact
from streams.archive.archive_export import ExportedRange
from streams.archive.archive_reader import ArchiveReader


@click.command()
@recording_options
@click.argument("target", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--from", "start", help=MOMENT_HELP)
@click.option("--to", "end", help="MOMENT up to which, not included.")
@click.option("--redact", "without_names", is_flag=True, help="Without names, addresses and free texts.")
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def export(
    source: RecordingSource,
    target: Path,
    start: str | None,
    end: str | None,
    *,
    without_names: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write the log, or a range of it, to FILE: compressed, with checksums, and with the snapshot before it.

    Every command that takes `--log FILE` then works without a server. The file holds no prompt and no token; the
    deployment's key is not in it. With a copy of the key, the file's chains can be proved elsewhere.

    With --redact, names of workers, replicas and tenants are replaced, addresses and free texts are gone. Models and
    request ids stay, because decisions rest on them.

    \b
    contrail export incident.contrail --from 14:00 --to 14:30
    contrail export all.contrail --data data
    contrail export part.contrail --log all.contrail --from req-0123456789abcdef
    contrail export to-share.contrail --log incident.contrail --redact
    """
    clock = SystemClock()
    started_ms, now_ms = clock.monotonic_ms(), source.now_ms
    range_ = RecordingRange(*(parse_moment(text, now_ms) if text is not None else None for text in (start, end)))
    with draft(target, force=force) as written:
        archived, done = _redacted(source, written, range_, clock) if without_names else _plain(source, written, range_)
        found = summarize_export(target, written, range_, archived, done, (clock.monotonic_ms() - started_ms) / 1000)
    print_result(export_text(found), found, as_json=as_json)


def _plain(source: RecordingSource, written: Path, range_: RecordingRange) -> tuple[ExportedRange, None]:
    return source.copied(written, range_, show_progress()), None


def _redacted(
    source: RecordingSource, written: Path, range_: RecordingRange, clock: Clock
) -> tuple[ExportedRange, RedactionResult]:
    with tempfile.TemporaryDirectory(prefix="contrail-") as folder:  # readable by this user alone
        path = Path(folder) / "log"
        archived = source.copied(path, range_, show_progress())
        with ArchiveReader.open(path) as whole:
            done = redact(
                whole,
                written,
                source.chain_key_of(whole.contents),
                show_progress("taking the names out"),
                program=program(),
                made_ms=clock.wall_ms(),
            )
    return archived, done
