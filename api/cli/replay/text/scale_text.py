"""Decisions on the size of the fleet as text: one decision explained, and the table of its candidates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UnsetType

from api.cli.quantities import count_text, number_text
from api.cli.renderer import Facts, Mark, Table, Text
from core.event_json import time_text
from core.events.kv import PREFILL
from core.events.scale import CapacityLearned, DemandRolled, ScaleCandidate, ScaleDecided, ScaleJudgement
from replay.explain.scale_explanation import DIFFERENT, ScaleExplanation

CANDIDATE_HEADS = ("workers", "at/s", "attained", "first token", "between tokens", "computing prompts", "step ms")
TITLES = 12


def explain_scale_text(it: ScaleExplanation) -> Text:
    """The explanation. Rates are arrivals a second."""
    decided = it.decided
    yield f"decision of {it.time} at scale:{it.seq}{fleet_text(decided)}"
    *lines, verdict = it.summary
    yield from lines
    yield Mark(verdict, "problem") if it.verdict == DIFFERENT else verdict
    yield ""
    yield Facts(_facts(it), TITLES)
    if decided.candidates:
        sought = f"{percent_of(decided.goal_bp)} of requests within the bounds"
        yield from ("", f"The fewest workers with {sought} were sought:", candidates_table(decided))


def fleet_text(decided: ScaleDecided) -> str:
    """` on MODEL (prefill)`: the fleet of a decision, as far as it names one."""
    on = f" on {decided.model}" if isinstance(decided.model, str) else ""
    return on if isinstance(decided.role, UnsetType) else f"{on} ({decided.role})"


def candidates_table(decided: ScaleDecided) -> Table:
    """All predictions of a decision, in the order in which they were made; those by eased bounds where they count."""
    heads: tuple[str, ...] = CANDIDATE_HEADS
    rows = list(map(_candidate_row, decided.candidates))
    if decided.is_eased:
        heads = (*heads, "eased")
        eased = ["" if each.eased_bp is None else percent_of(each.eased_bp) for each in decided.candidates]
        rows = [(*row, share) for row, share in zip(rows, eased, strict=True)]
    return Table(heads, rows, ">" * len(heads))


def rate_of(thousandths: int) -> str:
    """Arrivals a second."""
    return f"{thousandths / 1000:.2f}"


def percent_of(hundredths: int) -> str:
    """A share in hundredths of a percent."""
    return f"{hundredths / 100:.2f} %"


def _candidate_row(it: ScaleCandidate) -> tuple[str, ...]:
    shares = (it.attainment_bp, it.first_token_bp, it.between_tokens_bp, it.prefill_bp)
    return (number_text(it.workers), rate_of(it.rate_m), *map(percent_of, shares), f"{it.step_us / 1000:.1f}")


def _facts(it: ScaleExplanation) -> Iterator[tuple[str, str]]:
    decided, forecast = it.decided, it.decided.forecast
    yield "demand", _demand(decided, it.demand)
    margin = "" if forecast.upper_m == forecast.rate_m else f", {rate_of(forecast.upper_m)} with its recent errors"
    yield "forecast", f"{rate_of(forecast.rate_m)} a second in {forecast.horizon_s} s ({forecast.predictor}){margin}"
    fleet = {"ready": decided.ready, "starting": decided.starting, "overdue": decided.overdue}
    fleet["draining"] = decided.draining
    yield "fleet", ", ".join(f"{count} {state}" for state, count in fleet.items())
    yield "required", f"{decided.required}, ceiling {percent_of(decided.ceiling_bp)} without any wait"
    if isinstance(decided.budget, int):
        yield "devices", f"{decided.budget} of all fleets; alone it would have {decided.sought} workers"
    if isinstance(decided.judged, ScaleJudgement):
        yield "judge", _judgement(decided.judged)
    if it.window is not None:
        yield "window", f"up to {it.window.required} required before{'' if it.window.is_full else ', not full yet'}"
    if it.capacity is not None:
        yield "worker", _worker(it.capacity)
    if it.settings is not None:
        yield "settings", ", ".join(_settings(it.settings))
    yield (
        "",
        f"revision {decided.revision}; rules of version {decided.version}; {count_text(decided.periods, 'period')}",
    )


def _judgement(it: ScaleJudgement) -> str:
    """The simulated numbers of workers, or the judge's absence."""
    about = f"on the decision of {time_text(it.asked_ms)}"
    if it.absent:
        return f"absent ({it.absent}), {about}"
    simulated = ", ".join(
        f"{count_text(each.workers, 'worker')} {percent_of(each.attainment_bp)}" for each in it.workers
    )
    return f"{simulated}, {about} at {rate_of(it.rate_m)} a second"


def _demand(decided: ScaleDecided, demand: DemandRolled | None) -> str:
    burst = f", a burst of {rate_of(decided.burst_m)}" if decided.burst_m else ""
    found = f"{rate_of(decided.rate_m)} a second over the last minute{burst}"
    if demand is None:
        return found
    return (
        f"{found}; the last {demand.period_s} s: {count_text(demand.arrivals, 'arrival')}, {demand.waiting:,} waiting, "
        f"{demand.running:,} running, {demand.attained:,} of {demand.ended:,} ended ones within the bounds"
        f"{_prefill_demand(demand)}"
    )


def _prefill_demand(demand: DemandRolled) -> str:
    found = demand.prefill_demand
    if isinstance(found, UnsetType):
        return ""
    return f"; {found.waiting:,} wait for a first token, {count_text(found.pulled, 'prompt')} from prefill workers"


def _worker(it: CapacityLearned) -> str:
    """The speed of a worker, by the ends of the measured lines."""
    startup_s = it.startup_ms / 1000
    prefill = f"{it.prefill_us[-1] / 1000:g} ms for {it.prefill_tokens[-1]:,} prompt tokens"
    if it.role == PREFILL:
        transfer_ms = 0 if isinstance(it.transfer_us, UnsetType) else it.transfer_us / 1000
        return f"{prefill} ({it.origin}), {transfer_ms:g} ms from there to the first token, starts in {startup_s:g} s"
    return f"{prefill}, {it.decode_us[0] / 1000:g} ms a step ({it.origin}), starts in {startup_s:g} s"


def _settings(settings: dict[str, Any]) -> Iterator[str]:
    for key, value in settings.items():
        yield from _settings(value) if isinstance(value, dict) else (f"{key} {value}",)
