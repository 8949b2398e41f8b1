"""The result of a simulation, as JSON and as text: one run as a page, several as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from api.cli.quantities import bytes_text, count_text, ms_text, number_text, percent_text, plural
from api.cli.renderer import Table, Text
from projections.scaling.scale_settings import PREFILL_WORKERS
from replay.simulate.options import Options
from replay.simulate.report import Disaggregation, LatencySummary, PoolReport, ScalingReport, SimulationReport, Spread
from replay.simulate.setup import Setup, SweepPoint, label


def run_json(setup: Setup, found: SimulationReport) -> dict[str, Any]:
    """Stable snake_case keys: those of `SimulationReport`, and `simulated` for what was asked."""
    return {**msgspec.to_builtins(found), "simulated": _simulated(setup)}


def sweep_json(setup: Setup, found: Sequence[SweepPoint]) -> dict[str, Any]:
    """The same for each of `points`, with what was set for it under `given`; `simulated` is what all have in common."""
    rows = [{"given": point.given, **msgspec.to_builtins(point.report)} for point in found]
    return {"points": rows, "simulated": _simulated(setup)}


NOT_ASKED = {"clocks", "broker_clock", "clocks_corrected", "continues"}
"""Options that no option of the command line sets."""


def _simulated(setup: Setup) -> Mapping[str, Any]:
    """Enough to ask for the same again; of the trace only its name."""
    options = setup.options
    return {
        "trace": setup.trace.path.name,
        "format": setup.trace.format,
        "first": setup.trace.first,
        "model": setup.trace.model,
        **{key: value for key, value in setup.pace._asdict().items() if key != "seed"},
        **{
            field.name: getattr(options, field.name)
            for field in dataclasses.fields(options)
            if field.name not in {"engine", "routing", "bounds", "planner", "prefill_scale"} | NOT_ASKED
        },
        **({"slo": options.counted_bounds._asdict()} if options.counted_bounds is not None else {}),
        **({"planner": _planner(options)} if options.planner is not None else {}),
        "engine": dataclasses.asdict(options.engine),
        "routing": options.routing.to_mapping(),
    }


def _planner(options: Options) -> Mapping[str, Any]:
    assert options.planner is not None
    own = {PREFILL_WORKERS: dict(options.prefill_scale)} if options.prefill_workers else {}
    return {**options.planner.to_mapping(), **own}


WORKERS_SHOWN_MAX = 16


def setup_line(setup: Setup) -> str:
    """Trace, fleet, policy and disturbances of a simulation, in one line."""
    options, pace = setup.options, setup.pace
    engine = options.engine
    parts = [
        setup.trace.path.name,
        *([f"x{pace.speed_up:g}"] if not options.concurrency else []),  # then times do not count
        f"{_fleet(setup)} of {count_text(engine.capacity_blocks, 'block')} of {engine.block_size}",
        f"engine {engine.timing}",
        f"policy {options.routing.policy}",
    ]
    parts += [f"a pool of {count_text(options.pool_blocks, 'block')}"] if options.pool_blocks else []
    parts += [f"jitter {pace.jitter_ms} ms"] if pace.jitter_ms else []
    parts += [f"{options.replicas} replicas"] if options.replicas > 1 else []
    parts += [f"lag {_lags(setup)} ms"] if options.lag_ms or options.replica_lags_ms else []
    parts += [f"{options.concurrency} at once"] if options.concurrency else []
    parts += ["sized by a planner"] if options.planner is not None else []
    lost = f"{options.failures_per_hour} {plural(options.failures_per_hour, 'worker')} lost per hour"
    parts += [lost] if options.failures_per_hour else []
    return ", ".join(parts)


def run_text(setup: Setup, found: SimulationReport) -> Text:
    """The page on one run."""
    yield from (setup_line(setup), "", _times(found), "", _numbers(found), "", _workers(found))
    if isinstance(found.scaling, ScalingReport):
        yield from ("", _scaling(found.scaling))
    if isinstance(found.pool, PoolReport):
        yield from ("", _pool(found.pool))
    if found.disaggregation is not None:
        yield from ("", *_prefills(found.disaggregation))
    yield from ("", f"digest {found.digest}; {found.duration_s:,.0f} s were simulated in {found.wall_s:.1f} s")


def sweep_text(setup: Setup, found: Sequence[SweepPoint]) -> Text:
    """The table of several runs, in the order in which they were asked for."""
    heads: tuple[str, ...] = (
        "set",
        "cached",
        "first token",
        "p99",
        "per token",
        "answer p99",
        "requests/s",
        "load ±",
        "held",
        "failed",
    )
    if any(point.report.disaggregation is not None for point in found):
        heads = (*heads, "remote")
    if isinstance(found[0].report.scaling, ScalingReport):
        yield from _sweep_scaling_text(setup, found)
        return
    rows = [
        (
            label(point.given),
            _percent(it.hit_rate),
            _ms(it.ttft_ms.mean),
            _ms(it.ttft_ms.p99),
            _ms(it.itl_ms.mean),
            _ms(it.e2e_ms.p99),
            f"{it.requests_per_s:.2f}",
            f"{it.load_spread.computed_tokens.cv:.2f}",
            _percent(it.held.share),
            _failed(it),
            "" if it.disaggregation is None else _percent(it.disaggregation.remote_share),
        )[: len(heads)]
        for point in found
        for it in (point.report,)
    ]
    swept = ", ".join(found[0].given)
    yield from (f"{setup_line(setup)}, but for {swept}", "", Table(heads, rows, "<" + ">" * (len(heads) - 1)))


def _sweep_scaling_text(setup: Setup, found: Sequence[SweepPoint]) -> Text:
    """The same with bounds of service: what each fleet costs, and what it attains."""
    rows = [
        (
            label(point.given),
            _percent(it.attainment),
            f"{it.worker_hours:.2f}",
            f"{it.workers_mean:.2f}",
            number_text(it.workers_max),
            f"{number_text(it.starts)} / {number_text(it.stops)}",
            _ms(point.report.ttft_ms.p99),
            _ms(point.report.itl_ms.p99),
            _failed(point.report),
        )
        for point in found
        if isinstance(it := point.report.scaling, ScalingReport)
    ]
    heads = (
        "set",
        "attained",
        "worker-hours",
        "mean",
        "most",
        "starts / stops",
        "first token p99",
        "per token p99",
        "failed",
    )
    swept = ", ".join(found[0].given)
    yield from (f"{setup_line(setup)}, but for {swept}", "", Table(heads, rows, "<" + ">" * (len(heads) - 1)))


def _scaling(it: ScalingReport) -> Table:
    """Cost and service of the fleet."""
    rows = [
        (f"within {it.ttft_ms} ms and {it.itl_ms} ms per token", _percent(it.attainment)),
        ("worker-hours", f"{it.worker_hours:.2f}{_prefill_hours(it)}"),
        ("workers", f"mean {it.workers_mean:.2f}, most {number_text(it.workers_max)}"),
        ("starts / stops", f"{number_text(it.starts)} / {number_text(it.stops)}"),
        ("drained workers with requests left", number_text(it.handed_over)),
    ]
    return Table((), rows, "<<")


def _prefill_hours(it: ScalingReport) -> str:
    found = it.prefill_worker_hours
    return "" if isinstance(found, msgspec.UnsetType) else f", of prefill workers {found:.2f}"


def _pool(it: PoolReport) -> Table:
    """Blocks read and written."""
    rows = [
        ("blocks read from disks", f"{number_text(it.loads)}, declined {number_text(it.loads_declined)}"),
        ("written there", f"{number_text(it.stores)}, dropped {number_text(it.stores_dropped)}"),
        ("evicted there", number_text(it.evictions)),
    ]
    return Table((), rows, "<<")


def _times(found: SimulationReport) -> Table:
    rows = [
        ("time to first token", *_row(found.ttft_ms)),
        ("time per further token", *_row(found.itl_ms)),
        ("whole answer", *_row(found.e2e_ms)),
    ]
    return Table(("", "mean", "p50", "p90", "p99"), rows, "<>>>>")


def _row(it: LatencySummary) -> tuple[str, ...]:
    return (_ms(it.mean), _ms(it.p50), _ms(it.p90), _ms(it.p99))


def _numbers(found: SimulationReport) -> Table:
    held = found.held
    rows = [
        ("requests", number_text(found.requests)),
        ("failed", _failed(found)),
        ("went on elsewhere", number_text(found.migrated)),
        ("prompt tokens from caches", _percent(found.hit_rate)),
        ("expected by decisions", _percent(found.predicted_hit_rate)),
        ("held in the router", f"{_percent(held.share)}, mean {_ms(held.mean_ms)}, longest {_ms(held.max_ms)}"),
        ("declined by busy workers", number_text(found.declined)),
        ("requests per second", f"{found.requests_per_s:.3f}"),
        ("output tokens per second", f"{found.output_tokens_per_s:,.0f}"),
    ]
    return Table((), rows, "<<")


def _failed(found: SimulationReport) -> str:
    """The count of failed requests, with those of each reason."""
    return f"{number_text(found.failed)} ({_counts(found.failures)})" if found.failed else "0"


def _workers(found: SimulationReport) -> Table:
    named = {"requests": found.load_spread.requests, "computed tokens": found.load_spread.computed_tokens}
    rows = [(name, f"{it.max_over_mean:.2f}", f"{it.cv:.2f}", _each(it)) for name, it in named.items()]
    return Table(("per worker", "most / mean", "deviation / mean", "each"), rows, "<>><")


def _each(it: Spread) -> str:
    shown = " ".join(f"{value:,}" for value in it.per_worker[:WORKERS_SHOWN_MAX])
    return f"{shown} …" if len(it.per_worker) > WORKERS_SHOWN_MAX else shown


def _prefills(it: Disaggregation) -> Text:
    """Prompts, jobs and waits of prefill workers."""
    blocks, tokens = count_text(it.pulled_blocks, "block"), count_text(it.pulled_tokens, "token")
    rows = [
        ("prompts computed by prefill workers", _percent(it.remote_share)),
        ("verdicts", _counts(it.verdicts)),
        ("jobs", _counts(it.jobs)),
        ("moved to decode workers", f"{blocks}, {bytes_text(it.pulled_bytes)}, {tokens}"),
        ("their tokens from prefill workers' caches", _percent(it.hit_rate)),
        ("computed tokens per prefill worker", _each(it.computed_tokens)),
    ]
    waits = [
        ("until a prefill worker begins", *_row(it.queued_ms)),
        ("until the answer", *_row(it.job_ms)),
        ("from there to the first token", *_row(it.pull_ms)),
    ]
    yield from (Table((), rows, "<<"), "", Table(("jobs", "mean", "p50", "p90", "p99"), waits, "<>>>>"))


def _counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{word} {number_text(count)}" for word, count in found.items()) or "none"


def _fleet(setup: Setup) -> str:
    options = setup.options
    prefill = f" + {options.prefill_workers} prefill" if options.prefill_workers else ""
    return f"{options.workers}{prefill} {plural(options.workers + options.prefill_workers, 'worker')}"


def _lags(setup: Setup) -> str:
    return ", ".join(map(str, setup.options.replica_lags_ms)) or str(setup.options.lag_ms)


def _ms(value: float) -> str:
    return ms_text(value, 2)


def _percent(share: float) -> str:
    return percent_text(share, 2)
