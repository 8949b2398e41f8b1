"""`contrail replay at`: the whole state at a moment, the difference of two, and a prompt asked of one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from api.cli.options import MOMENT, MomentCommand, RecordingRange
from api.cli.output import print_result, show_progress
from api.cli.replay.prompt_input import PromptInput, prompt_bytes
from api.cli.replay.recording_source import RecordingSource, recording_options
from api.cli.replay.text.state_text import asked_text, difference_text, state_text
from core.errors import CallerError
from core.keys import DeploymentKey
from core.prompt import scope_bytes
from replay.recording.moment import AtCursor, AtRequest, AtSequence, AtTime, Moment, find_request, parse_moment
from replay.recording.recording import Recording
from replay.state_at.route_prompt import PromptQuery, models, route_prompt
from replay.state_at.state_at import StateAt, state_at
from replay.state_at.state_diff import state_diff
from streams.log import EventLog

BACK_MS = 600_000
"""Of a running deployment's log at least so much is read before the moment …"""
BELIEF_BACK_MS = 3_600_000
"""… and so much, if a replica's last decision is looked for."""
AFTER_MS = 1000


@click.command("at", cls=MomentCommand)
@recording_options
@click.argument("moment", type=MOMENT)
@click.option("--replica", metavar="NAME_OR_ID", help="What this front end believed, at its last decision by then.")
@click.option("--diff", "until", type=MOMENT, help="What changed from MOMENT to this one.")
@click.option("--prompt", "text", type=click.Path(path_type=Path), help="Where the text in this file would have gone.")
@click.option("--tokens", help="The same for token ids: 1,15043,29871.")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="The model's folder, or its tokenizer.json.")
@click.option("--model", help="The model to ask for; may be left out if there was only one.")
@click.option(
    "--adapter", help="The adapter that the prompt is for: its id, NAME@DIGEST; in recordings of before its name."
)
@click.option("--cache-salt", help="The salt that keeps its cache apart.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def at(
    source: RecordingSource, moment: str, replica: str | None, until: str | None, as_json: bool, **asked: Any
) -> None:
    """Show the whole state at MOMENT: workers, blocks, load, requests in flight, settings, digests.

    It is the log's own; with --replica it is what that front end believed, which may be a few messages behind.
    A cursor is a moment too: then the state stands behind exactly these messages.

    \b
    contrail replay at 14:03 --data data
    contrail replay at 14:03 --replica frontend-2 --log incident.contrail
    contrail replay at -15m --diff -5m                        what changed
    contrail replay at req-0123456789abcdef --tokens 1,2,3    where would it have gone
    contrail replay at 14:03 --prompt prompt.txt --tokenizer models/tiny
    contrail replay at kv_0:1234,load:99,routing:345 --json
    """
    now_ms = source.now_ms
    moments = [parse_moment(text, now_ms) for text in (moment, until) if text is not None]
    given = PromptInput(asked.pop("text"), asked.pop("tokens"), asked.pop("tokenizer"))
    asks = given.text is not None or given.tokens is not None
    _check(given, asks=asks, differs=until is not None)
    with source.opened(_range_around(source, moments, BACK_MS if replica is None else BELIEF_BACK_MS)) as recording:
        stands = [state_at(recording, each, replica, show_progress("folding the log")) for each in moments]
        if asks:
            _ask(source, recording, stands[0], given, as_json=as_json, **asked)
        elif until is not None:
            found = state_diff(*stands)
            print_result(difference_text(found), found, as_json=as_json)
        else:
            held = stands[0].held()
            print_result(state_text(held), held, as_json=as_json)


def _check(given: PromptInput, *, asks: bool, differs: bool) -> None:
    if given.text is not None and given.tokens is not None:
        raise CallerError("give either --prompt or --tokens, not both")
    if asks and differs:
        raise CallerError("--diff shows what changed; ask about a prompt at one moment at a time")


def _ask(
    source: RecordingSource,
    recording: Recording,
    here: StateAt,
    given: PromptInput,
    *,
    model: str | None,
    adapter: str | None,
    cache_salt: str | None,
    as_json: bool,
) -> None:
    key = _key(source, recording)
    there = models(here)
    if model is None:
        if len(there) != 1:
            raise CallerError(f"which model? Give --model: there were {', '.join(there) or 'none'}")
        model = there[0]
    tokens = prompt_bytes(given, model, source.connection)
    found = route_prompt(
        here, PromptQuery(tokens, model, scope_bytes(adapter, cache_salt), adapter or ""), key.hash_seed
    )
    print_result(asked_text(found, here.held()), found, as_json=as_json)


def _key(source: RecordingSource, recording: Recording) -> DeploymentKey:
    """Which seeds the hashes of blocks."""
    key = recording.key if recording.key is not None else source.key
    if key is None:
        raise CallerError(
            "blocks are hashed with the deployment's key: give --key-file FILE, a copy of `key` from its data folder"
        )
    return key


def _range_around(source: RecordingSource, moments: list[Moment], back_ms: int) -> RecordingRange:
    """The part of a deployment's log that leads up to these moments; all of a file."""
    return RecordingRange() if source.file is not None else asyncio.run(_around(source, moments, back_ms))


async def _around(source: RecordingSource, moments: list[Moment], back_ms: int) -> RecordingRange:
    async with source.log() as log:
        times = [time_ms for moment in moments for time_ms in await _times(log, moment)]
    return RecordingRange(AtTime(min(times) - back_ms), AtTime(max(times) + AFTER_MS)) if times else RecordingRange()


async def _times(log: EventLog, moment: Moment) -> list[int]:
    """When the messages that the moment names were stored; none if nothing tells."""
    match moment:
        case AtTime(time_ms):
            return [time_ms]
        case AtRequest(request):
            return [(await find_request(log, request)).record.time_ms]
        case AtSequence(stream, seq):
            records = [await log.at(stream, seq)]
        case AtCursor(seqs):
            records = [await log.at(stream, seq) for stream, seq in seqs]
    return [record.time_ms for record in records if record is not None]
