"""`contrail profile`: the speed of an engine, measured: a table, and a file with which a planner begins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import uvloop

from actors.engines.engine_profiler import PROMPT_MAX, PROMPT_MIN, EngineFacts, EngineProfiler, ProfiledEngine
from api.cli.output import print_result, show_progress
from api.cli.profile.profile_text import profile_text
from api.cli.profile.profiled_worker import profiled_worker
from api.cli.worker_commands import with_options
from api.config.data_folder import draft
from api.config.deployment_ref import OPTIONS as DEPLOYMENT_OPTIONS
from api.config.deployment_ref import DeploymentRef, resolve_deployment
from api.config.schema import ENGINES
from api.process.engine_factory import EngineArguments, engine_object, engine_pairs, make_engine
from api.process.logging_setup import configure_engine_logging, configure_logging
from core.clock import SystemClock
from core.errors import CallerError
from core.event_json import time_text
from projections.scaling.measured_profile import MeasuredProfile

SECONDS = 60.0
SECONDS_LIMITS = (1.0, 3600.0)
"""Least and longest time of a measurement."""


class ProfileRequest(NamedTuple):
    """A measurement that was asked for: of an engine that is started for it, or of a running worker."""

    seconds: float
    prompt_max: int
    engine: EngineArguments | None
    connection: DeploymentRef | None
    """Of the worker, without an engine."""
    worker: str


class Measured(NamedTuple):
    """An engine that can be measured, and its facts."""

    engine: ProfiledEngine
    facts: EngineFacts


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the profile, for `planner.profile`."
)
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
@click.option(
    "--seconds",
    type=click.FloatRange(*SECONDS_LIMITS),
    default=SECONDS,
    show_default=True,
    help="The measurement ends by then, with the points that it has.",
)
@click.option(
    "--prompt-max",
    type=click.IntRange(PROMPT_MIN),
    default=PROMPT_MAX,
    show_default=True,
    metavar="TOKENS",
    help="The longest prompt; the engine's context, if that is shorter.",
)
@click.option("--engine", type=click.Choice(ENGINES), help="Start such an engine here, and measure it.")
@click.option("--model", default="", help="With --engine: the model's name for clients.")
@click.option("--model-path", default="", help="With --engine: folder or hub name; --model if not given.")
@click.option("--engine-args", "engine_json", default="{}", help="With --engine: its arguments, as a JSON object.")
@click.option(
    "--worker", default="", metavar="NAME", help="A running worker of the deployment; its only one if not given."
)
@with_options(*DEPLOYMENT_OPTIONS)
@click.option("--json", "as_json", is_flag=True, help="The profile as JSON.")
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
def profile(
    out: Path | None,
    seconds: float,
    prompt_max: int,
    engine: str | None,
    model: str,
    model_path: str,
    engine_json: str,
    worker: str,
    more: tuple[str, ...],
    *,
    force: bool,
    as_json: bool,
    **deployment: Any,
) -> None:
    """Measure the speed of an engine: prompts over their length, decode steps over requests and their tokens.

    \b
    contrail profile --engine vllm --model Qwen/Qwen3-8B --out qwen.json -- --max-num-seqs 64
    contrail profile --data data --worker decode-0 --out qwen.json --seconds 120
    contrail profile --engine simulated --model tiny --seconds 10 --json

    It sends random prompts, one or several at once, and takes medians. Without --engine, a running worker of the
    deployment is measured, past its front ends: other requests of that worker and the measurement slow each other. What
    follows `--` goes to the engine. A planner that is given the file (`planner: {profile: qwen.json}`) sizes the fleet
    from its first minute, and learns the speed itself later.
    """
    configure_logging()
    configure_engine_logging()
    arguments = _engine(engine, model, model_path, engine_json, more)
    if arguments is not None and (worker or any(deployment.values())):
        raise CallerError("--engine starts an engine of its own: leave out --worker and the deployment, or --engine")
    connection = resolve_deployment(**deployment) if arguments is None else None
    request = ProfileRequest(seconds, prompt_max, arguments, connection, worker)
    with ExitStack() as drafts:
        file = None if out is None else drafts.enter_context(draft(out, force=force))
        found = uvloop.run(measured_profile(request))
        if file is not None:
            file.write_bytes(found.encode())
    print_result(profile_text(found, out), msgspec.to_builtins(found), as_json=as_json)


def _engine(
    engine: str | None, model: str, model_path: str, engine_json: str, more: tuple[str, ...]
) -> EngineArguments | None:
    if engine is None:
        if model or model_path or more or engine_json != "{}":
            raise CallerError("--model and arguments are for an engine that is started here: give --engine, too")
        return None
    if not model:
        raise CallerError("--engine needs --model NAME")
    return EngineArguments(
        engine=engine,
        model=model,
        model_path=model_path or model,
        engine_args={**engine_object(engine_json), **engine_pairs(more)},
        moves_blocks="",
        block_host="",
        home=None,
    )


async def measured_profile(request: ProfileRequest) -> MeasuredProfile:
    """The profile. Errors of engine, worker and registry as they are."""
    clock = SystemClock()
    async with _measured(request) as (engine, facts):
        progress = show_progress("measuring", "points")
        profiler = EngineProfiler(engine, facts, clock, prompt_max=request.prompt_max, progress=progress)
        return await profiler.measure(request.seconds, time_text(clock.wall_ms()))


@asynccontextmanager
async def _measured(request: ProfileRequest) -> AsyncIterator[Measured]:
    if request.engine is not None:
        engine = make_engine(request.engine)
        try:
            await engine.start(lambda _change: None)
            it = engine.info
            room = it.block_size * it.capacity_blocks
            yield Measured(engine, EngineFacts(it.engine, it.model, it.block_size, it.context_max, room, it.slots))
        finally:
            await engine.stop()
        return
    assert request.connection is not None
    async with profiled_worker(request.connection, request.worker) as worker:
        of = worker.about
        room = of.block_size * of.capacity_blocks
        yield Measured(worker, EngineFacts(of.engine, of.model, of.block_size, of.context_max, room, of.slots))
