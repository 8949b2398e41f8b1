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
from core.errors import CallerError
from replay.excerpt.excerpt_export import ExcerptResult, write_excerpt
from replay.recording.moment import parse_moment
from replay.redact.redaction import RedactionResult, redact
from streams.archive.archive_export import ExportedRange
from streams.archive.archive_reader import ArchiveReader


@click.command()
@recording_options
@click.argument("target", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--from", "start", help=MOMENT_HELP)
@click.option("--to", "end", help="MOMENT up to which, not included.")
@click.option("--request", metavar="REQUEST_ID", help="Only this request, in a file of its own under 1 MB.")
@click.option("--tenant", help="With --request: the request of this tenant.")
@click.option("--redact", "without_names", is_flag=True, help="Without names, addresses and free texts.")
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def export(
    source: RecordingSource,
    target: Path,
    start: str | None,
    end: str | None,
    request: str | None,
    tenant: str | None,
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

    A range up to a request goes on until the requests that were routed in it have ended, for ten minutes at most.

    With --request, the file has one request alone: its decisions, each with the state that it was made on, cut to its
    prompt; the events of its course; and the cache events that touch its blocks. `explain` and `replay verify` answer
    from it as from the whole log. It is sealed with the deployment's key, since no chain proves how it was cut.

    \b
    contrail export incident.contrail --from 14:00 --to 14:30
    contrail export all.contrail --data data
    contrail export part.contrail --log all.contrail --from req-0123456789abcdef
    contrail export slow.contrail --data data --request req-0123456789abcdef
    contrail export to-share.contrail --log incident.contrail --redact
    """
    clock = SystemClock()
    started_ms, now_ms = clock.monotonic_ms(), source.now_ms
    if request is None and tenant is not None:
        raise CallerError("--tenant chooses among requests of one id: give --request, too")
    if request is not None and (start is not None or end is not None):
        raise CallerError("give either --request or a range, not both: --request finds all that the request needs")
    range_ = RecordingRange(*(parse_moment(text, now_ms) if text is not None else None for text in (start, end)))
    with draft(target, force=force) as written:
        cut, done = None, None
        if request is not None:
            archived = ExportedRange(None, {})
            cut, done = _excerpt(source, written, request, tenant, clock, without_names=without_names)
        elif without_names:
            archived, done = _redacted(source, written, range_, clock)
        else:
            archived = source.copied(written, range_, show_progress())
        took_s = (clock.monotonic_ms() - started_ms) / 1000
        found = summarize_export(target, written, range_, archived, done, took_s, cut)
    print_result(export_text(found), found, as_json=as_json)


def _excerpt(
    source: RecordingSource, written: Path, request: str, tenant: str | None, clock: Clock, *, without_names: bool
) -> tuple[ExcerptResult, RedactionResult | None]:
    with tempfile.TemporaryDirectory(prefix="contrail-") as folder:  # readable by this user alone
        path = Path(folder) / "excerpt" if without_names else written
        with source.opened_at(request, tenant) as (recording, name, whose):
            made_ms = clock.wall_ms()
            cut = write_excerpt(recording, name, path, program=program(), made_ms=made_ms, tenant=whose)
            if not without_names:
                return cut, None
            with ArchiveReader.open(path) as whole:
                key = recording.chain_key
                return cut, redact(whole, written, key, program=program(), made_ms=made_ms)


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
