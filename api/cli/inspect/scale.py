"""`contrail scale`: the newest decisions of a planner as a table, and its settings, changed while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import click
import msgspec
import orjson

from actors.planning.planner_service import CLAIM
from actors.planning.planner_settings import (
    ACT,
    PLANNER_SETTINGS_KEY,
    given_for,
    merged,
    own_settings,
    parsed,
    with_own_settings,
)
from api.cli.inspect.live_settings import change_claim
from api.cli.inspect.settings import words_of
from api.cli.main import DefaultGroup
from api.cli.options import MODEL_OPTION, ROLE_OPTION, pairs_of
from api.cli.output import print_result
from api.cli.quantities import number_text
from api.cli.renderer import Table, Text
from api.cli.replay.text.scale_text import candidates_table, fleet_text, percent_of, rate_of
from api.config.deployment_ref import DeploymentRef, deployment_options
from api.config.schema import OFF, PlannedGroup
from api.process.planes import open_log, open_registry
from core.codec import decode_message
from core.errors import CallerError
from core.event_json import time_text
from core.events.kv import DECODE, PREFILL
from core.events.scale import NO_MODEL, DemandRolled, ScaleDecided, fleet_key, model_of, role_of
from core.ids import StreamSeq
from core.subjects import SCALE

NO_PLANNER = "the deployment has no planner: give its file `planner: {mode: act}`, or start `contrail planner --advise`"
LAST = 12
LAST_MAX = 10_000
HEADS = ("decided", "arrived/s", "forecast/s", "waiting", "ready", "starting", "overdue", "required", "target", "why")
ALIGN = "<>>>>>>>><"


class PlannedPeriod(NamedTuple):
    """A decision, with the demand of its period."""

    decided: ScaleDecided
    demand: DemandRolled


class ScaleGroup(DefaultGroup):
    """Commands of a planner; `show` is the default."""

    default: ClassVar[str] = "show"


@click.group(cls=ScaleGroup)
def scale() -> None:
    """Show what a planner decides, or change its limits while it runs.

    \b
    contrail scale
    contrail scale --data data --last 100
    contrail scale set max 4 ttft_ms 800
    contrail scale set mode advise              decide and tell, and order nothing
    contrail scale hold                         keep as many workers as now
    contrail scale unset --all                  as the deployment file says
    """


@scale.command()
@deployment_options
@click.option(
    "--last", type=click.IntRange(1, LAST_MAX), default=LAST, show_default=True, metavar="N", help="So many decisions."
)
@MODEL_OPTION
@ROLE_OPTION
@click.option("--json", "as_json", is_flag=True, help="All that is recorded of them, as JSON.")
def show(connection: DeploymentRef, last: int, model: str | None, role: str | None, as_json: bool) -> None:
    """Show the newest decisions: the fleet, the demand, the size that was chosen, and why.

    \b
    contrail scale show --last 1 --json

    "why" is the reason of the target: `goal`, `burst`, `down_window` and so on; docs/planner.md has all.
    """
    found = asyncio.run(_read(connection, last, model, role))
    value = {"decisions": [msgspec.to_builtins(each.decided) for each in found]}
    print_result(scale_text(found), value, as_json=as_json)


@scale.command("set", context_settings={"ignore_unknown_options": True})  # -1 is a value, however wrong
@deployment_options
@MODEL_OPTION
@ROLE_OPTION
@click.argument("pairs", nargs=-1, required=True, metavar="KEY VALUE [KEY VALUE ...]")
def set_command(connection: DeploymentRef, model: str | None, role: str | None, pairs: tuple[str, ...]) -> None:
    """Change settings of the planner, all of them or none; they count from the next decision on.

    Keys are those of the section `planner`: mode, min, max, ttft_ms, itl_ms, attainment and so on. `max` is at most
    the file's.

    \b
    contrail scale set max 4
    contrail scale set mode=advise
    contrail scale set --model coder priority 5 min 2
    contrail scale set --role prefill max 2

    Without --role, numbers of workers and their times are those of decode workers.
    """
    asyncio.run(_change(connection, pairs_of(words_of(pairs), "contrail scale set"), frozenset(), model, role))


@scale.command()
@deployment_options
@MODEL_OPTION
@ROLE_OPTION
@click.argument("keys", nargs=-1, metavar="KEY [KEY ...]")
@click.option("--all", "everything", is_flag=True, help="Every setting.")
def unset(
    connection: DeploymentRef, model: str | None, role: str | None, keys: tuple[str, ...], everything: bool
) -> None:
    """Let settings of the planner be as the deployment file says again.

    \b
    contrail scale unset max
    contrail scale unset --all
    """
    if everything == bool(keys):
        raise CallerError("name the settings to unset, or give --all")
    asyncio.run(_change(connection, {}, None if everything else frozenset(keys), model, role))


@scale.command()
@deployment_options
@MODEL_OPTION
@ROLE_OPTION
@click.argument("workers", type=click.IntRange(min=1), required=False, metavar="[N]")
def hold(connection: DeploymentRef, workers: int | None, model: str | None, role: str | None) -> None:
    """Keep N workers, or as many as the newest decision has: `min` and `max` are that number from the next one on.

    \b
    contrail scale hold
    contrail scale hold 4
    contrail scale hold --model coder
    contrail scale unset min max                size the fleet again

    Workers that die are replaced meanwhile. Where several models or both roles are sized, --model and --role name one.
    """
    planned = connection.deployment.with_planner().planned_groups
    _check_fleet(planned, model, role)
    meant = [each for each in planned if model in {None, each.section.model} and role in {None, each.group.role}]
    if len(meant) > 1:
        models = sorted({each.section.model for each in meant})
        named = f"--model, one of {', '.join(models)}" if len(models) > 1 else f"--role, {DECODE} or {PREFILL}"
        raise CallerError(f"several fleets are sized: give {named}")
    number = workers or asyncio.run(_target(connection, model, role))
    asyncio.run(_change(connection, {"min": number, "max": number}, frozenset(), model, role))


def _check_fleet(planned: Sequence[PlannedGroup], model: str | None, role: str | None) -> None:
    """CallerError if the planner sizes no fleet of that model and role."""
    names = [each.section.model for each in planned if each.group.role == DECODE]
    with_prefill = _models_with_prefill(planned)
    if role == PREFILL and not (with_prefill if model is None else model in with_prefill):
        raise CallerError("the planner sizes no prefill workers: leave --role out")
    if model is not None and model not in names:
        there = ", ".join(names) if names[0] else "it sizes one model, and the option is of several"
        raise CallerError(f"--model {model}: {there}")


def _models_with_prefill(planned: Sequence[PlannedGroup]) -> set[str]:
    """The models whose prefill workers are sized, too."""
    return {each.section.model for each in planned if each.group.role == PREFILL}


async def _target(connection: DeploymentRef, model: str | None, role: str | None) -> int:
    """That of the newest decision. CallerError if there is none, or if it is zero."""
    found = await _read(connection, LAST, model, role)
    if not found:
        raise CallerError("no decision yet: give the number of workers, `contrail scale hold 4`")
    if not found[-1].decided.target:
        raise CallerError("the fleet is at zero: there is no worker to keep")
    return found[-1].decided.target


async def _change(
    connection: DeploymentRef,
    given: Mapping[str, Any],
    removed: frozenset[str] | None,
    model: str | None,
    role: str | None,
) -> None:
    """The registry has the settings with this change, of all models or of one, or of prefill workers, or CallerError
    says what is wrong with them. Where the file has no planner, one must lead."""
    deployment = connection.deployment.with_planner()
    planned = deployment.planned_groups
    _check_fleet(planned, model, role)
    fleet = fleet_key(model or NO_MODEL, role or DECODE)
    with_prefill = _models_with_prefill(planned)
    async with open_registry(connection) as registry, change_claim(registry, "contrail scale"):
        if connection.deployment.planner_mode == OFF and not await registry.get(CLAIM):
            raise CallerError(NO_PLANNER)
        found = [change for change in await registry.get(PLANNER_SETTINGS_KEY) if change.key == PLANNER_SETTINGS_KEY]
        everything = parsed(found[0].value) if found and (removed is not None or fleet) else {}
        before = own_settings(fleet, everything)
        if unknown := sorted((removed or frozenset()) - before.keys()):
            raise CallerError(f"{unknown[0]}: not set live; live are {', '.join(before) or 'none'}")
        kept = {} if removed is None else {key: value for key, value in before.items() if key not in removed}
        after: dict[str, Any] = {**kept, **given}
        live = with_own_settings(fleet, everything, after)
        for each in planned:
            may_act, has_prefill = deployment.planner_mode == ACT, each.section.model in with_prefill
            merged(each.settings, may_act, given_for(each.fleet, live), each.group.role, has_prefill=has_prefill)
        await registry.put(PLANNER_SETTINGS_KEY, orjson.dumps(live))
    click.echo(f"live: {', '.join(f'{key} {value}' for key, value in after.items()) or 'nothing'}")


def scale_text(found: list[PlannedPeriod]) -> Text:
    """The decisions, oldest first, and the candidates of the newest one."""
    if not found:
        yield "no decision yet: the speed of a worker is not known, or no planner leads"
        return
    names = {
        "model": ([model_of(each.decided) for each in found], any(model_of(each.decided) for each in found)),
        "role": ([role_of(each.decided) for each in found], any(role_of(each.decided) != DECODE for each in found)),
    }
    shown = {head: cells for head, (cells, is_shown) in names.items() if is_shown}
    rows = [(*_row(each), *(cells[number] for cells in shown.values())) for number, each in enumerate(found)]
    yield Table((*HEADS, *shown), rows, ALIGN + "<" * len(shown))
    newest = found[-1].decided
    if newest.candidates:
        yield ""
        if newest.is_eased:
            yield (
                f"An idle worker keeps {percent_of(newest.ceiling_bp)} of requests within the bounds. "
                "Wider ones can be met: contrail scale set ttft_ms MS, or itl_ms MS"
            )
        yield f"The last one{fleet_text(newest)} sought {percent_of(newest.goal_bp)} of requests within the bounds:"
        yield candidates_table(newest)


def _row(it: PlannedPeriod) -> tuple[str, ...]:
    decided, demand = it
    return (
        time_text(decided.at_ms),
        rate_of(decided.rate_m),
        rate_of(decided.forecast.upper_m),
        number_text(demand.waiting),
        *map(number_text, (decided.ready, decided.starting, decided.overdue, decided.required, decided.target)),
        decided.bound,
    )


async def _read(connection: DeploymentRef, last: int, model: str | None, role: str | None) -> list[PlannedPeriod]:
    """The decisions of the newest messages, oldest first; those on the model and the role if they are given.
    CallerError if there is no planner's stream."""
    async with open_log(connection) as log:
        if SCALE not in await log.streams():
            raise CallerError(NO_PLANNER)
        state = await log.state(SCALE)
        start = StreamSeq(max(state.first_seq, state.last_seq - last + 1))
        found: list[PlannedPeriod] = []
        async for record in log.read(SCALE, start):
            events = decode_message(record.payload).events
            demands = {model_of(event): event for event in events if isinstance(event, DemandRolled)}
            decisions = (event for event in events if isinstance(event, ScaleDecided))
            found += (
                PlannedPeriod(event, demands[model_of(event)])
                for event in decisions
                if model_of(event) in demands
                if model in {None, model_of(event)} and role in {None, role_of(event)}
            )
        return found
