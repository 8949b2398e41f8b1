"""How `contrail simulate` gets what it is asked: options and their meaning."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import click

from actors.engines.simulated.simulated_settings import LINEAR, MOCKER, TIMINGS, SimulatedSettings, mocker_settings
from api.cli.options import pairs, sweeps
from core.errors import CallerError
from core.settings import RoutingSettings
from replay.simulate.options import Options
from replay.simulate.setup import Setup, changed_engine
from replay.simulate.trace_file import AUTO, FORMATS, TraceFile
from replay.simulate.workload import Pace

BLOCKS = 16_384
"""Per worker; of 64 tokens, a million tokens."""


COMPARE_EVERY = 10


class SimulationRequest(NamedTuple):
    """What is asked."""

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
    click.option("--workers", type=int, default=8, show_default=True, help="Engines, each with a cache of its own."),
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
    click.option("--concurrency", type=int, default=0, help="A closed loop: so many requests are under way, always."),
    click.option("--replicas", type=int, default=1, show_default=True, help="Routers that share the requests."),
    click.option(
        "--lag", "lag_ms", type=int, default=0, metavar="MS", help="Routers know what was said so much later."
    ),
    click.option("--replica-lag", "lags", metavar="MS,MS,…", help="The same for each router by itself."),
    click.option("--failures-per-hour", type=int, default=0, help="Workers that end without a word, and come back."),
    click.option(
        "--compare-every",
        type=int,
        default=COMPARE_EVERY,
        show_default=True,
        metavar="N",
        help="Of so many requests one is shown to the other routers, too: would they decide alike?",
    ),
    click.option("--sweep", "swept", multiple=True, metavar="KEY=A,B,…", help="A run per value, or combination."),
)


def simulation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command has these, and gets an `SimulationRequest` as its argument `asking`."""

    @wraps(command)
    def with_asking(
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
        workers: int,
        prefill_workers: int,
        concurrency: int,
        replicas: int,
        lag_ms: int,
        failures_per_hour: int,
        compare_every: int,
        **rest: Any,
    ) -> Any:
        file = TraceFile(trace, format_, first or 0, model)
        file.check()
        pace = Pace(speed_up, jitter_ms, seed)
        pace.check()
        options = Options(
            workers=workers,
            prefill_workers=prefill_workers,
            engine=engine_settings(engine, block_size or file.block_size(), blocks, pairs(engine_given)),
            routing=RoutingSettings.parse(pairs(given) | ({"policy": policy} if policy is not None else {})),
            replicas=replicas,
            lag_ms=lag_ms,
            replica_lags_ms=_lags(lags),
            concurrency=concurrency,
            failures_per_hour=failures_per_hour,
            compare_every=compare_every,
            seed=seed,
        )
        return command(*args, asking=SimulationRequest(Setup(file, pace, options).checked(), sweeps(swept)), **rest)

    for option in reversed(OPTIONS):
        with_asking = option(with_asking)
    return with_asking


def engine_settings(timing: str, block_size: int, blocks: int, given: Mapping[str, Any]) -> SimulatedSettings:
    """An engine whose passes take what `timing` says, with these settings changed; all else as Dynamo's mock engine.
    CallerError names what cannot be."""
    usual = mocker_settings(block_size, blocks)
    if timing == LINEAR:
        usual = dataclasses.replace(usual, timing=LINEAR)
    return changed_engine(usual, given)


def _lags(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise CallerError(f"--replica-lag: {text!r} is not MS,MS,…: whole milliseconds, one for each replica") from None
