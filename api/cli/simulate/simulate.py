"""`contrail simulate`: what routing would do with a trace, on simulated engines, in virtual time."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import click

from actors.engines.simulated.simulated_settings import LINEAR, MOCKER, TIMINGS, SimulatedSettings, mocker_settings
from actors.planning.planner_settings import PROFILE_FILE
from api.cli.options import pairs, slo_settings, sweeps
from api.cli.output import json_text, print_result, show_progress
from api.cli.simulate.simulate_text import run_json, run_text, setup_line, sweep_json, sweep_text
from api.config.data_folder import draft
from api.config.loading import read_file
from api.config.profile_file import read_profile
from core.errors import CallerError
from core.events.scale import CapacityLearned
from core.settings import RoutingSettings
from projections.scaling.scale_settings import PREFILL_WORKERS, SLO, ScaleSettings
from replay.simulate.charts import run_plot, sweep_plot
from replay.simulate.options import WORKERS, Options, ServiceBounds
from replay.simulate.recorded_requests import RecordedShape
from replay.simulate.setup import Setup, changed_engine, combinations, sweep
from replay.simulate.simulated_log import KEY
from replay.simulate.trace_file import AUTO, FORMATS, TraceFile
from replay.simulate.workload import Pace

BLOCKS = 16_384
"""Blocks in the cache of each worker; of 64 tokens, a million tokens."""


PLANNER_HELP = "Settings of a planner, which sizes the fleet from --workers (and --prefill-workers) on."
SLO_HELP = "Count the requests within these bounds; with --planner it seeks attainment=PERCENT, too."
PLANNER_SECTION = "planner"
"""Key of the file, below which the settings may stand."""


class SimulationRequest(NamedTuple):
    """A run, or a sweep, that was asked for."""

    setup: Setup
    sweeps: Mapping[str, Sequence[Any]]
    """Empty for one run."""


OPTIONS = (
    click.argument("trace", type=click.Path(path_type=Path), metavar="TRACE"),
    click.option(
        "--format", "format_", type=click.Choice(FORMATS), default=AUTO, help="Of TRACE; told by its content."
    ),
    click.option("--model", default="", help="Of a recording that has several: simulate this model's requests."),
    click.option("--first", type=click.IntRange(1), metavar="N", help="Only the trace's first N requests."),
    click.option("--speed-up", type=float, default=1.0, show_default=True, help="Requests come so many times as fast."),
    click.option("--jitter", "jitter_ms", type=int, default=0, metavar="MS", help="Each comes later by up to this."),
    click.option("--seed", type=int, default=0, show_default=True, help="Of jitter, failures and draws."),
    click.option("--workers", type=int, help=f"Engines, each with a cache; {WORKERS}, or those of the recording."),
    click.option(
        "--prefill-workers", type=int, default=0, metavar="N", help="So many more, which compute long prompts for them."
    ),
    click.option("--policy", help="How workers are chosen: kv, round-robin, …; `contrail settings` has all settings."),
    click.option("--set", "given", multiple=True, metavar="KEY=VALUE", help="A setting of routing; repeat for more."),
    click.option(
        "--engine",
        type=click.Choice(TIMINGS),
        default=MOCKER,
        show_default=True,
        help="What passes take: as Dynamo's mock engine, or so much per token and step.",
    ),
    click.option("--engine-set", "engine_given", multiple=True, metavar="KEY=VALUE", help="A setting of the engine."),
    click.option("--block-size", type=click.IntRange(1), help="Tokens per block; 64, or those of the recording."),
    click.option("--blocks", type=click.IntRange(1), default=BLOCKS, show_default=True, help="In each worker's cache."),
    click.option("--pool-blocks", type=int, default=0, metavar="N", help="In one pool behind all hosts."),
    click.option(
        "--pool-us-per-block", type=int, default=1000, show_default=True, metavar="US", help="To read one, or write it."
    ),
    click.option("--concurrency", type=int, default=0, help="A closed loop: so many requests are under way, always."),
    click.option("--replicas", type=int, default=1, show_default=True, help="Routers that share the requests."),
    click.option(
        "--lag", "lag_ms", type=int, default=0, metavar="MS", help="Routers know what was said so much later."
    ),
    click.option("--replica-lag", "lags", metavar="MS,MS,…", help="The same for each router by itself."),
    click.option("--planner", "planner_file", type=click.Path(path_type=Path), metavar="FILE", help=PLANNER_HELP),
    click.option("--slo", "slo", multiple=True, metavar="ttft=MS,itl=MS", help=SLO_HELP),
    click.option("--failures-per-hour", type=int, default=0, help="Workers that end without a word, and come back."),
    click.option("--compare-every", hidden=True),
    click.option("--sweep", "swept", multiple=True, metavar="KEY=A,B,…", help="A run per value, or combination."),
)


def simulation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command has these options, and gets a `SimulationRequest` as its argument `request`."""

    @wraps(command)
    def with_request(
        *args: Any,
        trace: Path,
        format_: str,
        model: str,
        first: int | None,
        speed_up: float,
        jitter_ms: int,
        seed: int,
        engine: str,
        engine_given: Sequence[str],
        block_size: int | None,
        blocks: int,
        policy: str | None,
        given: Sequence[str],
        lags: str | None,
        swept: Sequence[str],
        workers: int | None,
        prefill_workers: int,
        pool_blocks: int,
        pool_us_per_block: int,
        concurrency: int,
        replicas: int,
        lag_ms: int,
        failures_per_hour: int,
        planner_file: Path | None,
        slo: Sequence[str],
        compare_every: str | None,
        **rest: Any,
    ) -> Any:
        if compare_every is not None:
            raise CallerError("--compare-every is gone: routers are no longer compared in a simulation; leave it out")
        file = TraceFile(trace, format_, first or 0, model)
        file.check()
        pace = Pace(speed_up, jitter_ms, seed)
        pace.check()
        shape = file.shape() if workers is None or block_size is None else RecordedShape(block_size, workers)
        options = Options(
            workers=shape.workers if workers is None else workers,
            prefill_workers=prefill_workers,
            pool_blocks=pool_blocks,
            pool_us_per_block=pool_us_per_block,
            engine=engine_settings(engine, block_size or shape.block_size, blocks, pairs(engine_given)),
            routing=RoutingSettings.parse(pairs(given) | ({"policy": policy} if policy is not None else {})),
            replicas=replicas,
            lag_ms=lag_ms,
            replica_lags_ms=_lags(lags),
            concurrency=concurrency,
            failures_per_hour=failures_per_hour,
            seed=seed,
            planner=None if planner_file is None else planner_settings(planner_file, slo_settings(slo)),
            learns=(profile := None if planner_file is None else planner_profile(planner_file)) is not None,
            profile=profile,
            prefill_scale=() if planner_file is None else tuple(planner_prefill(planner_file).items()),
            bounds=_bounds(slo_settings(slo)) if slo and planner_file is None else None,
        )
        return command(*args, request=SimulationRequest(Setup(file, pace, options).checked(), sweeps(swept)), **rest)

    for option in reversed(OPTIONS):
        with_request = option(with_request)
    return with_request


def planner_settings(file: Path, slo: Mapping[str, Any]) -> ScaleSettings:
    """The settings of the file, alone or below `planner`, with other bounds of service if any are given. CallerError
    names what is wrong."""
    found = _planner_section(file)
    within = found.get(SLO, {})
    settings = {key: value for key, value in found.items() if key not in {PROFILE_FILE, PREFILL_WORKERS}}
    return ScaleSettings.parse({**settings, SLO: {**within, **slo} if isinstance(within, Mapping) else within})


def planner_prefill(file: Path) -> Mapping[str, Any]:
    """The settings of the file that prefill workers have of their own; empty without any. CallerError if they have no
    keys."""
    found = _planner_section(file).get(PREFILL_WORKERS, {})
    if not isinstance(found, Mapping):
        raise CallerError(f"{file}: {PREFILL_WORKERS}: {found!r} has no keys")
    return found


def planner_profile(file: Path) -> CapacityLearned | None:
    """The speed in the measured profile that the file names; None if it names none. CallerError if it is none."""
    name = _planner_section(file).get(PROFILE_FILE, "")
    if not isinstance(name, str):
        raise CallerError(f"{file}: {PROFILE_FILE}: {name!r} is no name of a file")
    return read_profile(Path(name)).capacity() if name else None


def _planner_section(file: Path) -> Mapping[str, Any]:
    found = read_file(file)
    found = found.get(PLANNER_SECTION, found)
    if not isinstance(found, Mapping):
        raise CallerError(f"{file}: {PLANNER_SECTION} has no settings: it is {found!r}")
    return found


def _bounds(slo: Mapping[str, Any]) -> ServiceBounds:
    """The bounds by which a fleet without a planner is counted."""
    if slo.keys() != {"ttft_ms", "itl_ms"}:
        raise CallerError("--slo: without --planner give exactly ttft=MS,itl=MS: nothing seeks an attainment")
    settings = ScaleSettings.parse(slo)
    return ServiceBounds(settings.ttft_ms, settings.itl_ms)


def engine_settings(timing: str, block_size: int, blocks: int, given: Mapping[str, Any]) -> SimulatedSettings:
    """An engine with this timing of passes and these changed settings, otherwise like Dynamo's mock engine.

    CallerError names a setting that is wrong.
    """
    engine = mocker_settings(block_size, blocks)
    if timing == LINEAR:
        engine = dataclasses.replace(engine, timing=LINEAR)
    return changed_engine(engine, given)


def _lags(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise CallerError(f"--replica-lag: {text!r} is not MS,MS,…: whole milliseconds, one for each replica") from None


@click.command()
@simulation_options
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the log: for `explain`, `replay`.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw what was found.")
@click.option("--write", type=click.Path(path_type=Path), metavar="FILE", help="Write the JSON there as well.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@click.option("--jobs", type=click.IntRange(1), help="Processes that share a sweep; as many as there are CPUs.")
def simulate(
    request: SimulationRequest,
    out: Path | None,
    plot: Path | None,
    write: Path | None,
    jobs: int | None,
    *,
    as_json: bool,
    force: bool,
) -> None:
    """Simulate the requests of TRACE: the router's own folds and decisions, on simulated engines, in virtual time.

    TRACE is a file in Mooncake's format, or an export of ours (`contrail export FILE`). Only the file is read;
    equal calls give equal results, byte for byte, here and elsewhere. Of the run `--out` keeps the log, as if it had
    happened: `contrail explain REQUEST --log FILE`, `contrail replay verify --log FILE` and `contrail replay open`.
    FILE.key is its key, which is no secret: with `--key-file` every message is proved, too.

    Requests wait for a place as they would in a router: active_max, queue_max and queue_wait_max_ms count (`--set`).
    Requests that fail are counted by reason.

    Public traces round their times (the conversation trace to 3 s): --jitter 3000 spreads them again.

    \b
    contrail simulate trace.jsonl
    contrail simulate trace.jsonl --workers 8 --speed-up 4 --policy round-robin --json
    contrail simulate trace.jsonl --jitter 3000 --seed 1 --plot run.svg --out run.contrail
    contrail simulate trace.jsonl --replicas 4 --lag 100 --failures-per-hour 5
    contrail simulate trace.jsonl --workers 6 --prefill-workers 2 --set remote_prefill_min_tokens=2048
    contrail simulate incident.contrail --concurrency 64 --set own_weight=2
    contrail simulate trace.jsonl --workers 4 --planner planner.yaml --slo ttft=1000,itl=50
    contrail simulate trace.jsonl --workers 2 --prefill-workers 2 --planner planner.yaml
    contrail simulate trace.jsonl --sweep own_weight=1,2,4 --sweep workers=4,8 --plot trade-off.svg

    A sweep takes any routing setting, and workers, prefill_workers, replicas, lag_ms, concurrency, failures_per_hour,
    pool_blocks, pool_us_per_block, speed_up, jitter_ms, seed, engine.NAME and planner.NAME.
    Blocks move in `--engine-set transfer_us_per_block=US`.
    """
    if request.sweeps and out is not None:
        raise CallerError("--out keeps the log of one run: leave --sweep out, or --out")
    if plot is not None and plot.suffix != ".svg":
        raise CallerError("--plot draws SVG: give a file name that ends in .svg")
    with ExitStack() as drafts:
        paths = (out, plot, write)
        files = _OutputFiles(*(file and drafts.enter_context(draft(file, force=force)) for file in paths))
        if out is not None:
            drafts.enter_context(draft(Path(f"{out}.key"), force=force)).write_text(KEY.secret.hex() + "\n")
        if request.sweeps:
            _sweep(request, files, jobs or os.cpu_count() or 1, as_json=as_json)
        else:
            _run(request.setup, files, as_json=as_json)


class _OutputFiles(NamedTuple):
    """The files to write, each as a draft."""

    out: Path | None
    plot: Path | None
    write: Path | None


def _run(setup: Setup, files: _OutputFiles, *, as_json: bool) -> None:
    found = setup.run(show_progress("simulating", "requests"), files.out)
    value = run_json(setup, found.report)
    if files.plot is not None:
        files.plot.write_text(run_plot(found.served, found.report, setup_line(setup)))
    if files.write is not None:
        files.write.write_text(json_text(value) + "\n")
    print_result(run_text(setup, found.report), value, as_json=as_json)


def _sweep(request: SimulationRequest, files: _OutputFiles, jobs: int, *, as_json: bool) -> None:
    setup = request.setup
    points = combinations(request.sweeps)
    progress = show_progress(f"simulating {len(points):,} runs", "requests")
    found = list(sweep(setup, points, jobs, progress))
    value = sweep_json(setup, found)
    if files.plot is not None:
        files.plot.write_text(sweep_plot(found, setup_line(setup)))
    if files.write is not None:
        files.write.write_text(json_text(value) + "\n")
    print_result(sweep_text(setup, found), value, as_json=as_json)
