"""`contrail simulate`: what routing would do with a trace, on simulated engines, in virtual time."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click

from api.cli.output import json_text, print_result, show_progress
from api.cli.simulate.simulate_options import SimulationRequest, simulation_options
from api.cli.simulate.simulate_text import run_json, run_text, setup_line, sweep_json, sweep_text
from api.config.data_folder import draft
from core.errors import CallerError
from replay.simulate.charts import run_plot, sweep_plot
from replay.simulate.setup import Setup
from replay.simulate.simulated_log import KEY
from replay.simulate.sweep import combinations, sweep


@click.command()
@simulation_options
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the log: for `explain`, `replay`.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw what was found.")
@click.option("--write", type=click.Path(path_type=Path), metavar="FILE", help="Write the JSON there as well.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@click.option("--jobs", type=click.IntRange(1), help="Processes that share a sweep; as many as there are CPUs.")
def simulate(
    asking: SimulationRequest,
    out: Path | None,
    plot: Path | None,
    write: Path | None,
    jobs: int | None,
    *,
    as_json: bool,
    force: bool,
) -> None:
    """Simulate the requests of TRACE: the router's own folds and decisions, on simulated engines, in virtual time.

    TRACE is a file in Mooncake's format, or an export of ours (`contrail export FILE`). Nothing is asked but the file;
    equal calls give equal results, byte for byte, here and elsewhere. Of the run `--out` keeps the log, as if it had
    happened: `contrail explain REQUEST --log FILE`, `contrail replay verify --log FILE` and `contrail replay open`.
    FILE.key is its key, which is no secret: with `--key-file` every message is proved, too.

    Requests wait for a place as they would in a router: active_max, queue_max and queue_wait_max_ms count (`--set`).
    Whoever fails is counted with the reason.

    Public traces round their times (the conversation trace to 3 s): --jitter 3000 spreads them again.

    \b
    contrail simulate trace.jsonl
    contrail simulate trace.jsonl --workers 8 --speed-up 4 --policy round-robin --json
    contrail simulate trace.jsonl --jitter 3000 --seed 1 --plot run.svg --out run.contrail
    contrail simulate trace.jsonl --replicas 4 --lag 100 --failures-per-hour 5
    contrail simulate trace.jsonl --workers 6 --prefill-workers 2 --set remote_prefill_min_tokens=2048
    contrail simulate incident.contrail --concurrency 64 --set own_weight=2
    contrail simulate trace.jsonl --sweep own_weight=1,2,4 --sweep workers=4,8 --plot trade-off.svg

    A sweep takes any routing setting, and workers, prefill_workers, replicas, lag_ms, concurrency, failures_per_hour,
    speed_up, jitter_ms, seed, and engine.NAME. Blocks move in `--engine-set transfer_us_per_block=US`.
    """
    if asking.sweeps and out is not None:
        raise CallerError("--out keeps the log of one run: leave --sweep out, or --out")
    if plot is not None and plot.suffix != ".svg":
        raise CallerError("--plot draws SVG: give a file name that ends in .svg")
    with ExitStack() as drafts:
        wanted = (out, plot, write)
        files = _OutputFiles(*(file and drafts.enter_context(draft(file, force=force)) for file in wanted))
        if out is not None:
            drafts.enter_context(draft(Path(f"{out}.key"), force=force)).write_text(KEY.secret.hex() + "\n")
        if asking.sweeps:
            _sweep(asking, files, jobs or os.cpu_count() or 1, as_json=as_json)
        else:
            _run(asking.setup, files, as_json=as_json)


class _OutputFiles(NamedTuple):
    """What is written, each as a draft."""

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


def _sweep(asking: SimulationRequest, files: _OutputFiles, jobs: int, *, as_json: bool) -> None:
    setup = asking.setup
    asked = combinations(asking.sweeps)
    tell = show_progress(f"simulating {len(asked):,} runs", "requests")
    found = list(sweep(setup, asked, jobs, tell))
    value = sweep_json(setup, found)
    if files.plot is not None:
        files.plot.write_text(sweep_plot(found, setup_line(setup)))
    if files.write is not None:
        files.write.write_text(json_text(value) + "\n")
    print_result(sweep_text(setup, found), value, as_json=as_json)
