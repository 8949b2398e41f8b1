"""`contrail explain scale`: why the fleet had its size at a moment."""

from __future__ import annotations

import asyncio

import click

from api.cli.options import MODEL_OPTION, MOMENT, ROLE_OPTION, MomentCommand
from api.cli.output import print_result, show_progress
from api.cli.replay.recording_source import RecordingSource, recording_options
from api.cli.replay.text.scale_text import explain_scale_text
from replay.explain.scale_explainer import explain_scale
from replay.explain.scale_explanation import ScaleExplanation, as_objects
from replay.recording.moment import Moment, parse_moment


@click.command("scale", cls=MomentCommand)
@recording_options
@click.argument("moment", type=MOMENT, required=False)
@MODEL_OPTION
@ROLE_OPTION
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def explain_scale_command(
    source: RecordingSource, moment: str | None, model: str | None, role: str | None, as_json: bool
) -> None:
    """Say why the fleet had its size at MOMENT: the demand, the forecast, every size that was tried, the reason of the
    target, and what came of it. The decision is made again from the log.

    MOMENT is a time, a request id, or a message of the planner's stream; without it, the newest decision is meant. A
    time has the last decision before it, `scale:1234` that of the message, or the last one before it.

    \b
    contrail explain scale
    contrail explain scale -5m
    contrail explain scale 14:03 --log incident.contrail
    contrail explain scale scale:1234 --json
    contrail explain scale -5m --model coder             of several models
    contrail explain scale --role prefill                its prefill workers
    contrail explain scale req-0123456789abcdef          the fleet when this request was routed
    """
    at = None if moment is None else parse_moment(moment, source.now_ms)
    found = asyncio.run(_explained(source, at, model, role))
    print_result(explain_scale_text(found), as_objects(found), as_json=as_json)


async def _explained(
    source: RecordingSource, moment: Moment | None, model: str | None, role: str | None
) -> ScaleExplanation:
    async with source.log() as log:
        return await explain_scale(log, moment, show_progress(), model, role)
