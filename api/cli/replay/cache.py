"""`contrail cache`: the cache hits that were available and those that were achieved, and the difference by cause."""

from __future__ import annotations

import click

from api.cli.options import MOMENT_HELP, RecordingRange
from api.cli.output import print_result, show_progress
from api.cli.replay.recording_source import RecordingSource, positions, recording_options
from api.cli.replay.text.cache_text import apart_text, cache_json, cache_text
from core.errors import CallerError
from replay.cache.cache_losses import cache_losses
from replay.cache.cache_report import BY_CAUSE, GROUPINGS
from replay.recording.moment import parse_moment

LIMIT = 20
"""Rows shown if no other number is given."""


@click.command()
@recording_options
@click.option("--by", type=click.Choice(GROUPINGS), default=BY_CAUSE, show_default=True, help="One row for each.")
@click.option("--from", "start", help=MOMENT_HELP)
@click.option("--to", "end", help="MOMENT up to which, not included.")
@click.option("--limit", type=click.IntRange(1), default=LIMIT, show_default=True, metavar="N", help="Rows to show.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def cache(source: RecordingSource, by: str, start: str | None, end: str | None, limit: int, *, as_json: bool) -> None:
    """Report the cache hits that were available, those that were achieved, and the difference by cause: the workload,
    the capacity, lost workers, or the router.

    A block of a prompt was available if any cache held it at any time before. Each block that was available and was
    computed has one cause, judged at the cursor of the decision, the first that holds: another live worker held it
    (sent elsewhere); the log had it and the replica had not read that (replica behind); the copy that went last was
    evicted, or its worker was lost. Not available are blocks that no worker had stored yet, and cold ones.

    Requests count with each attempt that got a first token. Hits are those that the engines reported, in whole
    blocks. Requests before --from count for what was stored, and are in no sum.

    By session and by tenant the report also has the blocks of each that workers removed, by the blocks that took their
    room: its own, or those of others; and the room that it took from others. By tenant one sentence says whether one
    pushed out others.

    Sessions are those that clients name. Where they name none, a request that continues the whole prompt of an
    earlier one belongs to its talk, which is named by its first request.

    \b
    contrail cache --log incident.contrail
    contrail cache --from -1h --by tenant
    contrail cache --log incident.contrail --by session --limit 50
    contrail cache --log incident.contrail --by hour --json
    """
    now_ms = source.now_ms
    moments = [parse_moment(text, now_ms) if text is not None else None for text in (start, end)]
    with source.opened(RecordingRange(*moments)) as recording:
        first, last = positions(recording, *moments)
        progress = show_progress("reading decisions twice", "decisions")
        found = cache_losses(recording, first, last, by=by, progress=progress)
    if not found.total.sums.attempts:
        why = "; ".join(apart_text(found)) or "none is there"
        raise CallerError(f"no request in this part of the record counts: {why}. Give another range by --from and --to")
    print_result(cache_text(found, limit), cache_json(found, limit), as_json=as_json)
