"""`contrail explain`: why a request went where it went; or which requests to ask that of. `contrail explain scale` is
beside it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, ClassVar

import click

from api.cli.main import DefaultGroup
from api.cli.options import RecordingRange
from api.cli.output import print_result
from api.cli.replay.explain_scale import explain_scale_command
from api.cli.replay.recording_source import AFTER_MS, BEFORE_MS, RecordingSource, recording_options
from api.cli.replay.text.explain_text import explain_text, requests_text
from api.cli.replay.text.lost_text import lost_json, lost_text
from core.errors import CallerError
from replay.cache.prefix_loss import prefix_loss
from replay.explain.explain import explain
from replay.explain.request_list import LOST, REJECTED, UNDER_WAY, list_requests, turn_of
from replay.recording.moment import AtTime, FoundRequest, Moment, find_request, last_request, parse_moment
from replay.recording.recording import Recording
from replay.redact.pseudonyms import REQUEST_OUTCOMES

LAST_MS = 3_600_000
"""A list of a deployment's requests goes back so far if no start is given."""
LIMIT = 20
SLOWEST = 10
KNOWN_OUTCOMES = (*sorted(REQUEST_OUTCOMES), REJECTED, LOST, UNDER_WAY)


class ExplainGroup(DefaultGroup):
    """`contrail explain REQUEST_ID` explains a request."""

    default: ClassVar[str] = "request"
    takes_argument: ClassVar[bool] = True


@click.group(cls=ExplainGroup)
def explain_group() -> None:
    """Say why a request went where it went, or why the fleet had its size.

    \b
    contrail explain --last
    contrail explain scale -5m
    """


@explain_group.command("request")
@recording_options
@click.argument("request_id", required=False)
@click.option("--last", is_flag=True, help="Explain the request that came last; with --tenant, the tenant's last.")
@click.option("--worker", metavar="NAME_OR_ID", help="List requests that went to this worker.")
@click.option("--replica", metavar="NAME_OR_ID", help="List requests that this front end took.")
@click.option("--model", help="List requests for this model.")
@click.option("--tenant", help="List requests of this tenant; with REQUEST_ID, explain the request of this tenant.")
@click.option("--session", metavar="ID", help="List requests of this session, by the client's id or by its key.")
@click.option("--turn", type=click.IntRange(1), metavar="N", help="With --session: explain its Nth request in the log.")
@click.option("--outcome", help=f"List requests that ended so: {', '.join(KNOWN_OUTCOMES)}.")
@click.option(
    "--from", "start", metavar="MOMENT", help="List requests from then on: 2026-11-20T14:03:05Z, 14:03, -15m."
)
@click.option("--to", "end", metavar="MOMENT", help="List requests up to then, not included.")
@click.option(
    "--slowest",
    type=click.IntRange(1),
    is_flag=False,
    flag_value=SLOWEST,
    metavar="[N]",
    help=f"List the N with the longest wait: for the first token, or in a pause; {SLOWEST} if not given.",
)
@click.option(
    "--mispredicted", type=click.IntRange(1), metavar="N", help="List the N whose cache was mispredicted most."
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help=f"List no more than N; {LIMIT} if not given.")
@click.option(
    "--lost",
    is_flag=True,
    help="Of the request: the parts of its prompt that caches had held, where they were, and what took their room.",
)
@click.option("--whole", is_flag=True, help="Fold the log however long it takes: with all candidates, decided again.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def explain_command(
    source: RecordingSource,
    request_id: str | None,
    last: bool,
    lost: bool,
    whole: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Say, from the log alone, what was known when REQUEST_ID was routed, why that worker, what would have had to
    differ for another one, and what came of it. REQUEST_ID is that of the answer's header `x-request-id`, the `id` in
    its body, or four or more characters with which one request's id alone begins or ends.

    Without an id, list requests to ask about. Of a running deployment that is the last hour, unless --from is given.

    \b
    contrail explain --last                              why did that go there?
    contrail explain req-0123456789abcdef --data data
    contrail explain chatcmpl-req-0123456789abcdef
    contrail explain req-0123456789abcdef --log incident.contrail --json
    contrail explain order-17 --tenant team-a            if several tenants gave this id
    contrail explain --slowest 10                        why is it slow?
    contrail explain --outcome error --from -15m         what failed?
    contrail explain --worker decode-1 --from 14:03 --to 14:05
    contrail explain --mispredicted 10                   where was the index wrong?
    contrail explain --session 7f1c --turn 12            why was this turn of a talk slow?
    contrail explain req-0123456789abcdef --lost         what pushed its prompt out of the caches?
    contrail explain request scale                       if the request's own id is that of a command
    contrail explain scale -5m                           why did the fleet have its size?
    """
    lists = any(value is not None for name, value in chosen.items() if name != "tenant")
    if sum((request_id is not None, last, lists)) > 1:
        raise CallerError("give REQUEST_ID, or --last, or options that choose requests to list: one of them")
    if lost:
        _explain_loss(source, request_id, chosen, last=last, whole=whole, as_json=as_json)
    elif request_id is not None or last:
        _explain(source, request_id, chosen["tenant"], whole=whole, as_json=as_json)
    else:
        _list(source, chosen, as_json=as_json)


def _explain(source: RecordingSource, request: str | None, tenant: str | None, *, whole: bool, as_json: bool) -> None:
    """Of the request; without one, of the last."""
    range_ = RecordingRange()
    if source.file is None:
        found = asyncio.run(_found(source, request, tenant))
        request, tenant, at_ms = found.request, found.tenant, found.record.time_ms
        range_ = RecordingRange(AtTime(at_ms - BEFORE_MS), AtTime(at_ms + AFTER_MS))
    with source.opened(range_) as recording:
        if whole and sys.stderr.isatty():
            click.echo(f"folding up to {recording.archive.messages:,} messages", err=True)
        if request is None:
            request, tenant = _last(recording, tenant)
        explanation = explain(recording, request, tenant, whole=True if whole else None)
    print_result(explain_text(explanation), explanation, as_json=as_json)


def _explain_loss(
    source: RecordingSource, request: str | None, chosen: dict[str, Any], *, last: bool, whole: bool, as_json: bool
) -> None:
    """Of the request, of the last one, or of a turn of a session; from the start of the log up to its first token."""
    session, turn, tenant = chosen["session"], chosen["turn"], chosen["tenant"]
    others = [name for name, value in chosen.items() if value is not None and name not in {"tenant", "session", "turn"}]
    ways = (request is not None, last, session is not None and turn is not None)
    if whole or others or sum(ways) != 1 or (turn is None) != (session is None):
        raise CallerError("--lost is about one request: give REQUEST_ID, or --last, or --session ID --turn N")
    range_ = RecordingRange()
    if source.file is None and turn is None:
        found = asyncio.run(_found(source, request, tenant))
        request, tenant = found.request, found.tenant
        range_ = RecordingRange(None, AtTime(found.record.time_ms + AFTER_MS))
    with source.opened(range_) as recording:
        if turn is not None:
            tried = turn_of(recording, session, tenant, turn)
            request, tenant = tried.request, tried.tenant
        elif request is None:
            request, tenant = _last(recording, tenant)
        loss = prefix_loss(recording, request, tenant)
    print_result(lost_text(loss), lost_json(loss), as_json=as_json)


async def _found(source: RecordingSource, request: str | None, tenant: str | None) -> FoundRequest:
    """The request in a deployment's log."""
    async with source.log() as log:
        return await (last_request(log, tenant) if request is None else find_request(log, request, tenant))


def _last(recording: Recording, tenant: str | None) -> tuple[str, str]:
    """The id and the tenant of the last request in a file."""
    found = recording.requests.last(tenant)
    if found is None:
        raise CallerError(f"the log has no request{'' if tenant is None else f' of tenant {tenant!r}'}")
    return found.request, found.tenant


def _list(source: RecordingSource, chosen: dict[str, Any], *, as_json: bool) -> None:
    if chosen["slowest"] is not None and chosen["mispredicted"] is not None:
        raise CallerError("give either --slowest or --mispredicted, not both")
    if chosen["outcome"] not in {None, *KNOWN_OUTCOMES}:
        raise CallerError(f"--outcome {chosen['outcome']}: no request ends so; there are {', '.join(KNOWN_OUTCOMES)}")
    now_ms = source.now_ms
    start, end = (_moment(chosen.pop(name), now_ms) for name in ("start", "end"))
    if start is None and source.file is None:
        start = AtTime(now_ms - LAST_MS)
    range_ = RecordingRange(start, AtTime(end.time_ms + AFTER_MS) if isinstance(end, AtTime) else None)
    ranked = chosen["slowest"] is not None or chosen["mispredicted"] is not None
    limit = chosen.pop("limit") or (None if ranked or as_json else LIMIT)
    session, turn = chosen["session"], chosen.pop("turn")
    if turn is not None and session is None:
        raise CallerError("--turn counts the requests of a session: give --session, too")
    with source.opened(range_) as recording:
        if turn is not None:
            tried = turn_of(recording, session, chosen["tenant"], turn)
            explanation = explain(recording, tried.request, tried.tenant)
            print_result(explain_text(explanation), explanation, as_json=as_json)
            return
        found = list_requests(recording, **chosen, start=start, end=end, limit=limit)
        if not found.matched and chosen["model"] not in {None, *recording.requests.models}:
            models = ", ".join(sorted(recording.requests.models)) or "none yet"
            raise CallerError(f"no model {chosen['model']!r} in this log; there are {models}")
    print_result(requests_text(found, _where(source)), found, as_json=as_json)


def _moment(text: str | None, now_ms: int) -> Moment | None:
    return None if text is None else parse_moment(text, now_ms)


def _where(source: RecordingSource) -> str:
    """The words that name the same log to another command."""
    return "".join(f" {word}" for word in source.words)


explain_group.add_command(explain_scale_command)
