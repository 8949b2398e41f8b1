"""`contrail replay what-if --scale`: the recorded demand decided again under other settings of the planner."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import click

from api.cli.options import ROLE_OPTION, slo_settings
from api.cli.output import show_decision_progress, show_progress
from api.cli.replay.recording_source import RecordingSource
from core.errors import CallerError
from core.events.kv import DECODE
from replay.recording.moment import Moment, parse_moment
from replay.whatif.scale_figures import ScaleWhatIf
from replay.whatif.scale_rerun import ScaleRange, read_range, what_if_scale
from replay.whatif.scale_scenario import scale_scenarios


class ScaleArguments(NamedTuple):
    """The options of the planner's what-if alone."""

    slo: tuple[str, ...] = ()
    plot: Path | None = None
    model: str | None = None
    role: str = DECODE


OPTIONS = (
    click.option("--scale", "scale", is_flag=True, help="Decide the sizes of the fleet again, not the routes."),
    click.option(
        "--slo",
        multiple=True,
        metavar="ttft=MS,itl=MS",
        help="With --scale: bounds of service, or attainment=PERCENT.",
    ),
    click.option(
        "--plot", type=click.Path(path_type=Path), metavar="FILE.svg", help="With --scale: draw workers over time."
    ),
    ROLE_OPTION,
)


def scale_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command has these, and gets `ScaleArguments` as its argument `sizing`; None without --scale. The option
    --model is that of `closed_loop_options`."""

    @wraps(command)
    def with_sizing(
        *args: Any, scale: bool, model: str, slo: tuple[str, ...], plot: Path | None, role: str | None, **rest: Any
    ) -> Any:
        sizing = ScaleArguments(slo, plot, (model or None) if scale else None, role or DECODE)
        if not scale and (role or sizing != ScaleArguments()):
            raise CallerError("--slo, --plot and --role are of the planner's decisions: add --scale")
        if plot is not None and plot.suffix != ".svg":
            raise CallerError("--plot draws SVG: give a file name that ends in .svg")
        return command(*args, sizing=sizing if scale else None, **rest)

    for option in reversed(OPTIONS):
        with_sizing = option(with_sizing)
    return with_sizing


def size_again(
    source: RecordingSource,
    base: Mapping[str, Any],
    tries: Sequence[Mapping[str, Any]],
    sweeps: Mapping[str, Sequence[Any]],
    moments: tuple[str | None, str | None],
    sizing: ScaleArguments,
) -> ScaleWhatIf:
    """The answer. CallerError for wrong settings, and if there is no decision in the range."""
    asked = scale_scenarios({**base, **slo_settings(sizing.slo)}, tries, sweeps)
    now_ms = source.now_ms
    start, end = [None if text is None else parse_moment(text, now_ms) for text in moments]

    range_ = asyncio.run(_range(source, start, end, sizing.model, sizing.role))
    return what_if_scale(range_, asked, os.cpu_count() or 1, show_decision_progress())


async def _range(
    source: RecordingSource, start: Moment | None, end: Moment | None, model: str | None, role: str
) -> ScaleRange:
    async with source.log() as log:
        return await read_range(log, start, end, show_progress(), model, role)
