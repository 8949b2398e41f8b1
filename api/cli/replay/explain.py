"""`contrail explain`: why a request went where it went; or which requests to ask that of."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click

from api.cli.options import RecordingRange
from api.cli.output import print_result
from api.cli.replay.recording_source import RecordingSource, recording_options
from api.cli.replay.text.explain_text import explain_text, requests_text
from api.process.planes import open_log
from core.errors import CallerError
from replay.explain.explain import explain
from replay.explain.request_list import LOST, REJECTED, UNDER_WAY, list_requests
from replay.recording.moment import AtTime, Moment, parse_moment, routed_record
from replay.redact.pseudonyms import REQUEST_OUTCOMES

AFTER_MS = 900_000
"""Of a running deployment's log so much is read behind a request, or behind the end of a range, for what came of it."""
BEFORE_MS = 60_000
"""And so much before it, for what was under way then."""
LAST_MS = 3_600_000
"""A list of a running deployment's requests goes back so far if no start is given."""
LIMIT = 20
KNOWN_OUTCOMES = (*sorted(REQUEST_OUTCOMES), REJECTED, LOST, UNDER_WAY)


@click.command("explain")
@recording_options
@click.argument("request_id", required=False)
@click.option("--worker", metavar="NAME_OR_ID", help="List requests that went to this worker.")
@click.option("--replica", metavar="NAME_OR_ID", help="List requests that this front end took.")
@click.option("--model", help="List requests for this model.")
@click.option("--tenant", help="List requests of this tenant; with REQUEST_ID, explain the request of this tenant.")
@click.option("--outcome", help=f"List requests that ended so: {', '.join(KNOWN_OUTCOMES)}.")
@click.option(
    "--from", "start", metavar="MOMENT", help="List requests from then on: 2026-11-20T14:03:05Z, 14:03, -15m."
)
@click.option("--to", "end", metavar="MOMENT", help="List requests up to then, not included.")
@click.option("--slowest", type=click.IntRange(1), metavar="N", help="List the N with the longest time to first token.")
@click.option(
    "--mispredicted", type=click.IntRange(1), metavar="N", help="List the N whose cache was mispredicted most."
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help=f"List no more than N; {LIMIT} if not given.")
@click.option("--whole", is_flag=True, help="Fold the log however long it takes: with all candidates, decided again.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def explain_command(source: RecordingSource, request_id: str | None, whole: bool, as_json: bool, **chosen: Any) -> None:
    """Say, from the log alone, what was known when REQUEST_ID was routed, why that worker, what would have had to
    differ for another one, and what came of it. The id is in the answer's header `x-request-id`.

    Without an id, list requests to ask about. Of a running deployment that is the last hour, unless --from is given.

    \b
    contrail explain req-0123456789abcdef --data data
    contrail explain req-0123456789abcdef --log incident.contrail --json
    contrail explain order-17 --tenant team-a            if several tenants gave this id
    contrail explain --slowest 10                        why is it slow?
    contrail explain --outcome error --from -15m         what failed?
    contrail explain --worker decode-1 --from 14:03 --to 14:05
    contrail explain --mispredicted 10                   where was the index wrong?
    """
    lists = any(value is not None for name, value in chosen.items() if name != "tenant")
    if request_id is not None and lists:
        raise CallerError("give either REQUEST_ID, or options that choose requests to list, not both")
    if request_id is not None:
        _explain(source, request_id, chosen["tenant"], whole=whole, as_json=as_json)
    else:
        _list(source, chosen, as_json=as_json)


def _explain(source: RecordingSource, request: str, tenant: str | None, *, whole: bool, as_json: bool) -> None:
    with source.opened(_around(source, request, tenant)) as recording:
        if whole and sys.stderr.isatty():
            click.echo(f"folding up to {recording.archive.messages:,} messages", err=True)
        found = explain(recording, request, tenant, whole=True if whole else None)
    print_result(explain_text(found), found, as_json=as_json)


def _around(source: RecordingSource, request: str, tenant: str | None) -> RecordingRange:
    """The part of a running deployment's log that is about the request; all of a file."""
    if source.connection is None:
        return RecordingRange()
    return asyncio.run(_asked(source, request, tenant))


async def _asked(source: RecordingSource, request: str, tenant: str | None) -> RecordingRange:
    assert source.connection is not None
    async with open_log(source.connection) as log:
        found = await routed_record(log, request, tenant)
    return RecordingRange(AtTime(found.time_ms - BEFORE_MS), AtTime(found.time_ms + AFTER_MS))


def _list(source: RecordingSource, chosen: dict[str, Any], *, as_json: bool) -> None:
    if chosen["slowest"] is not None and chosen["mispredicted"] is not None:
        raise CallerError("give either --slowest or --mispredicted, not both")
    if chosen["outcome"] not in {None, *KNOWN_OUTCOMES}:
        raise CallerError(f"--outcome {chosen['outcome']}: no request ends so; there are {', '.join(KNOWN_OUTCOMES)}")
    now_ms = source.now_ms
    start, end = (_moment(chosen.pop(name), now_ms) for name in ("start", "end"))
    if start is None and source.connection is not None:
        start = AtTime(now_ms - LAST_MS)
    range_ = RecordingRange(start, AtTime(end.time_ms + AFTER_MS) if isinstance(end, AtTime) else None)
    ranked = chosen["slowest"] is not None or chosen["mispredicted"] is not None
    limit = chosen.pop("limit") or (None if ranked or as_json else LIMIT)
    with source.opened(range_) as recording:
        found = list_requests(recording, **chosen, start=start, end=end, limit=limit)
    print_result(requests_text(found, _where(source)), {"requests": found}, as_json=as_json)


def _moment(text: str | None, now_ms: int) -> Moment | None:
    return None if text is None else parse_moment(text, now_ms)


def _where(source: RecordingSource) -> str:
    """The words that name the same log to another command."""
    if source.file is not None:
        return f" --log {source.file}"
    assert source.connection is not None
    return "".join(f" {word}" for word in source.connection.words)
