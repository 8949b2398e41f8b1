"""`contrail scale`: the newest decisions of a planner as a table, and the candidates of the last one."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import click
import msgspec

from api.cli.output import print_result
from api.cli.quantities import number_text
from api.cli.renderer import Table, Text
from api.config.deployment_ref import DeploymentRef, deployment_options
from api.process.planes import open_log
from core.codec import decode_message
from core.errors import CallerError
from core.event_json import time_text
from core.events.scale import DemandRolled, ScaleCandidate, ScaleDecided
from core.ids import StreamSeq
from core.subjects import SCALE

LAST = 12
LAST_MAX = 10_000
HEADS = ("decided", "arrived/s", "forecast/s", "waiting", "ready", "starting", "overdue", "required", "target", "why")
ALIGN = "<>>>>>>>><"
CANDIDATE_HEADS = ("workers", "at/s", "attained", "first token", "between tokens", "computing prompts", "step ms")


class PlannedPeriod(NamedTuple):
    """A decision, with the demand of its period."""

    decided: ScaleDecided
    demand: DemandRolled


@click.command()
@deployment_options
@click.option(
    "--last", type=click.IntRange(1, LAST_MAX), default=LAST, show_default=True, metavar="N", help="So many decisions."
)
@click.option("--json", "as_json", is_flag=True, help="All that is recorded of them, as JSON.")
def scale(connection: DeploymentRef, last: int, as_json: bool) -> None:
    """Show what a planner decides: the fleet, the demand, the size that it chose, and why.

    \b
    contrail scale
    contrail scale --data data --last 100
    contrail scale --last 1 --json

    "why" is the reason of the target: `goal`, `burst`, `down_window` and so on; docs/planner.md has all.
    """
    found = asyncio.run(_read(connection, last))
    value = {"decisions": [msgspec.to_builtins(each.decided) for each in found]}
    print_result(scale_text(found), value, as_json=as_json)


def scale_text(found: list[PlannedPeriod]) -> Text:
    """The decisions, oldest first, and the candidates of the newest one."""
    if not found:
        yield "no decision yet: the speed of a worker is not known, or no planner leads"
        return
    yield Table(HEADS, [_row(each) for each in found], ALIGN)
    newest = found[-1].decided
    if newest.candidates:
        yield ""
        yield f"The last one sought {_percent(newest.goal_bp)} of requests within the bounds:"
        yield Table(CANDIDATE_HEADS, [_candidate_row(each) for each in newest.candidates], ">" * len(CANDIDATE_HEADS))


def _row(it: PlannedPeriod) -> tuple[str, ...]:
    decided, demand = it
    return (
        time_text(decided.at_ms),
        _rate(decided.rate_m),
        _rate(decided.forecast.upper_m),
        number_text(demand.waiting),
        *map(number_text, (decided.ready, decided.starting, decided.overdue, decided.required, decided.target)),
        decided.bound,
    )


def _candidate_row(it: ScaleCandidate) -> tuple[str, ...]:
    shares = (it.attainment_bp, it.first_token_bp, it.between_tokens_bp, it.prefill_bp)
    return (number_text(it.workers), _rate(it.rate_m), *map(_percent, shares), f"{it.step_us / 1000:.1f}")


def _rate(thousandths: int) -> str:
    return f"{thousandths / 1000:.2f}"


def _percent(hundredths: int) -> str:
    return f"{hundredths / 100:.2f} %"


async def _read(connection: DeploymentRef, last: int) -> list[PlannedPeriod]:
    """The newest decisions, oldest first. CallerError if there is no planner's stream."""
    async with open_log(connection) as log:
        if SCALE not in await log.streams():
            raise CallerError("no planner has ever run here: give the deployment's file `planner: {mode: advise}`")
        state = await log.state(SCALE)
        start = StreamSeq(max(state.first_seq, state.last_seq - last + 1))
        found: list[PlannedPeriod] = []
        async for record in log.read(SCALE, start):
            events = decode_message(record.payload).events
            demand = next((event for event in events if isinstance(event, DemandRolled)), None)
            decided = next((event for event in events if isinstance(event, ScaleDecided)), None)
            if demand is not None and decided is not None:
                found.append(PlannedPeriod(decided, demand))
        return found
