"""The result of a closed loop as text: the verdict, the table, and its basis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from actors.engines.simulated.simulated_settings import LINEAR
from api.cli.quantities import count_text, ms_text, number_text, percent_text, plural
from api.cli.renderer import Command, Notes, Table, Text
from core.event_json import time_text
from replay.closed_loop.closed_loop import ClosedLoopBasis, ClosedLoopResult, Rerun
from replay.closed_loop.engine_fit import EngineSpeeds
from replay.simulate.report import SimulationReport

EVEN = 0.005
"""A mean that changes by a smaller share is said to stay."""
HEADS = ("", "cached", "first token", "p50", "p99", "answer", "p99", "load ±", "failed")
RECORDED = "as it was recorded, measured"
BASELINE = "the same, simulated"
PREFILL_SPEEDS = frozenset({"prefill_us_per_pass", "prefill_us_per_token"})
DECODE_SPEEDS = frozenset({"decode_us_per_step", "decode_us_per_context_token"})


def closed_loop_text(answer: ClosedLoopResult) -> Text:
    """The page."""
    basis, best = answer.basis, answer.best
    first, last = time_text(basis.first_ms), time_text(basis.last_ms)
    requests = f"{count_text(basis.requests, 'request')} that came from {first} to {last}"
    yield f"{requests}, run again on {count_text(len(basis.workers), 'simulated worker')}"
    yield ""
    if best is None:
        yield "None of them is better than the recorded settings." if answer.outcomes else "Nothing else was asked."
    else:
        yield from (f"best: {best.label}", _verdict(best, answer.baseline))
        if best.scenario.settings:
            yield Command(f"  contrail settings set {best.scenario.set_text}")
    rows = [_row(RECORDED, answer.recorded), _row(BASELINE, answer.baseline.report)]
    rows += [_row(each.label, each.report) for each in answer.outcomes]
    yield from ("", Table(HEADS, rows, "<" + ">" * (len(HEADS) - 1)), "", Notes("What this rests on:", _basis(answer)))


def closed_loop_json(answer: ClosedLoopResult) -> dict[str, Any]:
    """Stable snake_case keys: those of a simulation's report for what was recorded, for the same simulated, and for
    each scenario; `best` is the settings of the first that is better than the recorded ones, or null; `workers` are
    the names that a row's numbers per worker are of."""
    best = answer.best
    return {
        "best": best.scenario.settings if best is not None else None,
        "recorded": answer.recorded,
        "baseline": _rerun_json(answer.baseline),
        "off": answer.off,
        "outcomes": [_rerun_json(each) for each in answer.outcomes],
        "fitted": answer.speeds,
        "basis": answer.basis,
        "notes": notes(answer),
    }


def _rerun_json(rerun: Rerun) -> dict[str, Any]:
    named = {"label": rerun.label, "scenario": rerun.scenario, "workers": rerun.workers}
    return {**named, **msgspec.to_builtins(rerun.report)}


def _verdict(best: Rerun, baseline: Rerun) -> str:
    was, found = baseline.report, best.report
    change = found.ttft_ms.mean / was.ttft_ms.mean - 1
    cached = f"{percent_text(found.hit_rate)} of all prompt tokens from caches instead of {percent_text(was.hit_rate)}"
    if -change < EVEN:
        return f"About the same: first tokens as soon, {cached}."
    means = f"{ms_text(was.ttft_ms.mean)} → {ms_text(found.ttft_ms.mean)}"
    return f"Better: first tokens {percent_text(-change)} sooner in the mean ({means}), {cached}."


def _row(label: str, it: SimulationReport) -> tuple[str, ...]:
    return (
        label,
        percent_text(it.hit_rate),
        ms_text(it.ttft_ms.mean),
        ms_text(it.ttft_ms.p50),
        ms_text(it.ttft_ms.p99),
        ms_text(it.e2e_ms.mean),
        ms_text(it.e2e_ms.p99),
        f"{it.load_spread.computed_tokens.cv:.2f}",
        number_text(it.failed),
    )


def _basis(answer: ClosedLoopResult) -> Iterator[str]:
    yield from _model_lines(answer)
    yield from _request_lines(answer)
    yield from _fleet_lines(answer)
    yield from notes(answer)


def _model_lines(answer: ClosedLoopResult) -> Iterator[str]:
    off, basis, engine = answer.off, answer.basis, answer.basis.engine
    by = (
        f"{off.hit_rate * 100:+.1f} points of hit rate, {_signed(off.ttft)} mean time to first token, "
        f"{_signed(off.e2e)} whole answers"
    )
    yield f"The simulation is off by this, under the recorded settings: {by}. Compare with “{BASELINE}”."
    if engine["timing"] == LINEAR:
        yield _prefill_line(basis, answer.speeds)
        yield _decode_line(basis, answer.speeds)
    else:
        yield "Engines take as long as Dynamo's mock engine does, since that was asked for: no time is fitted."
    yield (
        f"The record does not tell how many requests an engine runs at once ({engine['max_seqs']:,} here) and how many "
        f"tokens it computes in a pass ({engine['batched_tokens_max']:,}): give it with --engine max_seqs=N."
    )
    if basis.given:
        yield f"Given, not found in the record: {', '.join(basis.given)}."


def _prefill_line(basis: ClosedLoopBasis, speeds: EngineSpeeds) -> str:
    """The speed of prefills in the runs, and its source."""
    engine, given = basis.engine, PREFILL_SPEEDS & set(basis.given)
    by = (
        f", by {count_text(speeds.prefill_samples, 'first token')} {speeds.prefill_of}"
        if PREFILL_SPEEDS - given
        else ""
    )
    within = "" if given else f"; half of them lie within {ms_text(speeds.prefill_error_ms)} of that"
    return (
        f"Engines compute a prompt in {ms_text(engine['prefill_us_per_pass'] / 1000)} per pass"
        f"{_given('prefill_us_per_pass' in given)} and {ms_text(engine['prefill_us_per_token'])} per 1000 tokens"
        f"{_given('prefill_us_per_token' in given)}{by if speeds.prefill_samples else ''}{within}."
    )


def _decode_line(basis: ClosedLoopBasis, speeds: EngineSpeeds) -> str:
    """The same of further tokens."""
    engine, given = basis.engine, DECODE_SPEEDS & set(basis.given)
    if not speeds.decode_samples and not given:
        return "Too few answers tell how long further tokens take: they are taken to cost nothing."
    fitted = speeds.decode_samples and DECODE_SPEEDS - given
    by = f", by {count_text(speeds.decode_samples, 'answer')}" if fitted else ""
    return (
        f"A further token takes {ms_text(engine['decode_us_per_step'] / 1000)}{_given('decode_us_per_step' in given)} "
        f"and {ms_text(engine['decode_us_per_context_token'])} per 1000 tokens of all that are decoded at once"
        f"{_given('decode_us_per_context_token' in given)}{by}."
    )


def _given(given: bool) -> str:
    return " (given)" if given else ""


def _request_lines(answer: ClosedLoopResult) -> Iterator[str]:
    basis = answer.basis
    if basis.follow:
        follow = basis.follow
        come, they = plural(follow, "request comes", "requests come"), plural(follow, "it", "they")
        talks = f"{follow:,} {come} as long after the end of an earlier one as {they} did"
        goes = plural(follow, "goes", "go")
        yield f"{talks}: {they} {goes} on with its prompt. All others come when they came."
    else:
        yield "All requests come when they came."
    if basis.warm_up:
        run = plural(basis.warm_up, "was run", "were run")
        yield f"{count_text(basis.warm_up, 'request')} that came before them {run} to fill caches."
    for reason, count in basis.left_out.items():
        yield f"{count:,} {plural(count, 'request is', 'requests are')} left out: {reason}."
    for outcome, count in basis.cut_short.items():
        run = plural(count, "it is run with the tokens that it got", "they are run with the tokens that they got")
        yield f"{count_text(count, 'request')} ended by {outcome}: {run}."
    if other := basis.other_settings:
        yield (
            f"Settings changed while it was recorded: {other:,} {plural(other, 'request was', 'requests were')} "
            "decided by other ones than the simulated ones, which most of them had."
        )


def _fleet_lines(answer: ClosedLoopResult) -> Iterator[str]:
    basis = answer.basis
    if basis.lost:
        yield f"{count_text(basis.lost, 'time')} a worker was lost: it is, at that time, in each run."
    if basis.warm:
        yield "The record begins in the middle: workers had something in their caches then, and here nothing."


def notes(answer: ClosedLoopResult) -> list[str]:
    """Differences between the runs and a deployment, and the settings without effect because of them."""
    found = ["Routers know at once what engines do."]
    if answer.unread:
        vain = ", ".join(answer.unread)
        found.append(f"Nothing in these runs goes by these settings, whatever they change in a deployment: {vain}.")
    return found


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"
