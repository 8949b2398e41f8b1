"""`contrail sessions`: the sessions of a log, the slowest first, or those that the cache lost most for."""

from __future__ import annotations

import click

from api.cli.options import MOMENT_HELP, RecordingRange
from api.cli.output import print_result, show_progress
from api.cli.replay.recording_source import RecordingSource, positions, recording_options
from api.cli.replay.text.sessions_text import sessions_json, sessions_text
from core.errors import CallerError
from replay.cache.session_list import list_sessions
from replay.recording.moment import parse_moment

LIMIT = 20
"""Rows shown if no other number is given."""


@click.command()
@recording_options
@click.option("--slowest", is_flag=True, help="The longest wait first: for a first token, or in a pause (the default).")
@click.option("--lost", is_flag=True, help="First the session that lost most of what a cache had held.")
@click.option("--tenant", "tenants", multiple=True, metavar="T", help="Sessions of this tenant; may be repeated.")
@click.option("--from", "start", help=MOMENT_HELP)
@click.option("--to", "end", help="MOMENT up to which, not included.")
@click.option("--limit", type=click.IntRange(1), default=LIMIT, show_default=True, metavar="N", help="Rows to show.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def sessions(
    source: RecordingSource,
    tenants: tuple[str, ...],
    start: str | None,
    end: str | None,
    limit: int,
    *,
    slowest: bool,
    lost: bool,
    as_json: bool,
) -> None:
    """List sessions: their turns, the wait for first tokens, pauses, and what the cache lost, by cause.

    Sessions are those that clients name, by their keys; sub-agents stand under their parents. Where clients name none,
    a request that continues the whole prompt of an earlier one belongs to its talk, which is named by its first
    request. `contrail explain --session NAME --turn N` explains a turn of either.

    \b
    contrail sessions --log incident.contrail
    contrail sessions --lost --from -1h --tenant team-a
    contrail sessions --slowest --log incident.contrail --limit 50 --json
    """
    if slowest and lost:
        raise CallerError("give either --slowest or --lost, not both")
    now_ms = source.now_ms
    moments = [parse_moment(text, now_ms) if text is not None else None for text in (start, end)]
    with source.opened(RecordingRange(*moments)) as recording:
        first, last = positions(recording, *moments)
        progress = show_progress("reading decisions twice", "decisions")
        found = list_sessions(recording, first, last, by_loss=lost, tenants=tenants, progress=progress)
    if not found.sessions:
        raise CallerError("no request in this part of the record fits. Give another range by --from and --to")
    print_result(sessions_text(found, limit, by_loss=lost), sessions_json(found, limit, by_loss=lost), as_json=as_json)
