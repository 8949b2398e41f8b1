"""`contrail replay what-if --closed-loop`: the recorded requests run again through simulated engines."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import click

from api.cli.options import RecordingRange, pairs
from api.cli.output import show_progress
from api.cli.replay.recording_source import RecordingSource, positions
from core.errors import CallerError
from replay.closed_loop.closed_loop import ClosedLoopOptions, ClosedLoopResult, closed_loop
from replay.recording.moment import parse_moment
from replay.simulate.options import SEED_MAX
from replay.whatif.scenario import Scenario


class ClosedLoopArguments(NamedTuple):
    """The options of a closed loop alone."""

    engine: tuple[str, ...] = ()
    """KEY=VALUE."""
    model: str = ""
    open_arrivals: bool = False
    seed: int = 0
    jobs: int | None = None


OPTIONS = (
    click.option("--closed-loop", "closed_loop", is_flag=True, help="Run the requests again on simulated engines."),
    click.option("--open-arrivals", is_flag=True, help="With --closed-loop: nobody waits for an earlier answer."),
    click.option(
        "--engine",
        multiple=True,
        metavar="KEY=VALUE,…",
        help="With --closed-loop: what the record does not tell of the engine: max_seqs, batched_tokens_max, …",
    ),
    click.option("--model", default="", help="With --closed-loop or --scale: which of several models is meant."),
    click.option(
        "--seed", type=click.IntRange(0, SEED_MAX), default=0, show_default=True, help="With --closed-loop: of draws."
    ),
    click.option("--jobs", type=click.IntRange(1), help="With --closed-loop: processes that share the runs."),
)


def closed_loop_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command has these, and gets `ClosedLoopArguments` as its argument `loop`; None if no loop is asked for. It
    gets `scale` and `model`, too, since the planner's what-if has models as well."""

    @wraps(command)
    def with_loop(
        *args: Any,
        scale: bool,
        closed_loop: bool,
        engine: tuple[str, ...],
        model: str,
        open_arrivals: bool,
        seed: int,
        jobs: int | None,
        **rest: Any,
    ) -> Any:
        loop = ClosedLoopArguments(engine, "" if scale else model, open_arrivals, seed, jobs)
        if not closed_loop and loop != ClosedLoopArguments():
            raise CallerError(
                "--engine, --model, --open-arrivals, --seed and --jobs are of simulated runs: add --closed-loop"
            )
        return command(*args, scale=scale, model=model, loop=loop if closed_loop else None, **rest)

    for option in reversed(OPTIONS):
        with_loop = option(with_loop)
    return with_loop


def run_again(
    source: RecordingSource,
    scenarios: Sequence[Scenario],
    range_: tuple[str | None, str | None],
    loop: ClosedLoopArguments,
) -> ClosedLoopResult:
    """The runs. CallerError if the requests cannot be run again."""
    now_ms = source.now_ms
    start, end = [parse_moment(text, now_ms) if text is not None else None for text in range_]
    with source.opened(RecordingRange(None, end)) as recording:
        first, until = positions(recording, start, end)
        asked = ClosedLoopOptions(
            start=first,
            end=until,
            model=loop.model,
            engine=pairs(loop.engine),
            open_arrivals=loop.open_arrivals,
            seed=loop.seed,
            jobs=loop.jobs or os.cpu_count() or 1,
        )
        return closed_loop(recording, scenarios, asked, show_progress("simulating", "requests"))
