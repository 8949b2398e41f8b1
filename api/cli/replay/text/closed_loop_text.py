"""What a closed loop found, as a page of text: the verdict, the table, and what it rests on."""

from __future__ import annotations

from textwrap import fill

from actors.engines.simulated.simulated_settings import LINEAR
from api.cli.output import number_text, text_table
from core.event_json import time_text
from replay.simulate.closed_loop import ClosedLoopBasis, ClosedLoopResult, Rerun
from replay.simulate.engine_fit import EngineSpeeds
from replay.simulate.report import SimulationReport

WIDTH = 110
EVEN = 0.005
"""A mean that changes by a smaller share is said to stay."""
HEADS = ("", "cached", "first token", "p50", "p99", "answer", "p99", "load ±", "failed")
RECORDED = "as it was recorded"
BASELINE = "the same, simulated"
PREFILL_SPEEDS = frozenset({"prefill_us_per_pass", "prefill_us_per_token"})
DECODE_SPEEDS = frozenset({"decode_us_per_step", "decode_us_per_context_token"})


def answer_text(answer: ClosedLoopResult) -> str:
    """The page."""
    basis, best = answer.basis, answer.best
    first, last = time_text(basis.first_ms), time_text(basis.last_ms)
    came = f"{basis.requests:,} requests that came from {first} to {last}"
    lines = [f"{came}, run again on {len(basis.workers)} simulated workers", ""]
    if best is None:
        lines.append(_none_better(answer))
    else:
        lines += [f"best: {best.label}", _verdict(best, answer.baseline)]
        if best.scenario.settings:
            lines.append(f"  contrail settings set {best.scenario.set_text}")
    rows = [_row(RECORDED, answer.recorded), _row(BASELINE, answer.baseline.report)]
    rows += [_row(each.label, each.report) for each in answer.outcomes]
    lines += ["", *text_table(HEADS, rows, "<" + ">" * (len(HEADS) - 1)), "", *_trust(answer)]
    return "\n".join(lines)


def _none_better(answer: ClosedLoopResult) -> str:
    return "None of them is better than the recorded settings." if answer.outcomes else "Nothing else was asked."


def _verdict(best: Rerun, baseline: Rerun) -> str:
    was, found = baseline.report, best.report
    change = found.ttft_ms.mean / was.ttft_ms.mean - 1
    cached = f"{_percent(found.hit_rate)} of all prompt tokens from caches instead of {_percent(was.hit_rate)}"
    if -change < EVEN:
        return f"About the same: first tokens as soon, {cached}."
    means = f"{_ms(was.ttft_ms.mean)} → {_ms(found.ttft_ms.mean)}"
    return f"Better: first tokens {_percent(-change)} sooner in the mean ({means}), {cached}."


def _row(label: str, it: SimulationReport) -> tuple[str, ...]:
    return (
        label,
        _percent(it.hit_rate),
        _ms(it.ttft_ms.mean),
        _ms(it.ttft_ms.p50),
        _ms(it.ttft_ms.p99),
        _ms(it.e2e_ms.mean),
        _ms(it.e2e_ms.p99),
        f"{it.load_spread.computed_tokens.cv:.2f}",
        number_text(it.failed),
    )


def _trust(answer: ClosedLoopResult) -> list[str]:
    lines = [*_model_lines(answer), *_request_lines(answer), *_fleet_lines(answer)]
    return ["What this rests on:", *(fill(f"- {line}", WIDTH, subsequent_indent="  ") for line in lines)]


def _model_lines(answer: ClosedLoopResult) -> list[str]:
    off, basis, engine = answer.off, answer.basis, answer.basis.engine
    by = (
        f"{off.hit_rate * 100:+.1f} points of hit rate, {_signed(off.ttft)} mean time to first token, "
        f"{_signed(off.e2e)} whole answers"
    )
    lines = [f"The simulation is off by this, under the recorded settings: {by}. Compare with “{BASELINE}”."]
    if engine["timing"] == LINEAR:
        lines += [_prefill_line(basis, answer.speeds), _decode_line(basis, answer.speeds)]
    else:
        lines.append("Engines take as long as Dynamo's mock engine does, since that was asked for: no time is fitted.")
    lines.append(
        f"The record does not tell how many requests an engine runs at once ({engine['max_seqs']:,} here) and how many "
        f"tokens it computes in a pass ({engine['batched_tokens_max']:,}): say it by --engine max_seqs=N."
    )
    if basis.given:
        lines.append(f"Given, not found in the record: {', '.join(basis.given)}.")
    return lines


def _prefill_line(basis: ClosedLoopBasis, speeds: EngineSpeeds) -> str:
    """How fast prompts are computed in the runs, and where that is from."""
    engine, given = basis.engine, PREFILL_SPEEDS & set(basis.given)
    by = f", by {speeds.prefill_samples:,} first tokens {speeds.prefill_of}" if PREFILL_SPEEDS - given else ""
    within = "" if given else f"; half of them lie within {_ms(speeds.prefill_error_ms)} of that"
    return (
        f"Engines compute a prompt in {_ms(engine['prefill_us_per_pass'] / 1000)} per pass"
        f"{_given('prefill_us_per_pass' in given)} and {_ms(engine['prefill_us_per_token'])} per 1000 tokens"
        f"{_given('prefill_us_per_token' in given)}{by if speeds.prefill_samples else ''}{within}."
    )


def _decode_line(basis: ClosedLoopBasis, speeds: EngineSpeeds) -> str:
    """The same of further tokens."""
    engine, given = basis.engine, DECODE_SPEEDS & set(basis.given)
    if not speeds.decode_samples and not given:
        return "Too few answers tell how long further tokens take: they are taken to cost nothing."
    by = f", by {speeds.decode_samples:,} answers" if speeds.decode_samples and DECODE_SPEEDS - given else ""
    return (
        f"A further token takes {_ms(engine['decode_us_per_step'] / 1000)}{_given('decode_us_per_step' in given)} and "
        f"{_ms(engine['decode_us_per_context_token'])} per 1000 tokens of all that are decoded at once"
        f"{_given('decode_us_per_context_token' in given)}{by}."
    )


def _given(given: bool) -> str:
    return " (given)" if given else ""


def _request_lines(answer: ClosedLoopResult) -> list[str]:
    basis = answer.basis
    lines = ["All requests come when they came."]
    if basis.follow:
        talks = f"{basis.follow:,} requests come as long after the end of an earlier one as they did"
        lines = [f"{talks}: they go on with its prompt. All others come when they came."]
    if basis.warm_up:
        lines.append(f"{basis.warm_up:,} requests that came before them were run to fill caches.")
    lines += [f"{count:,} requests are left out: {reason}." for reason, count in basis.left_out.items()]
    lines += [
        f"{count:,} requests ended by {outcome}: they are run with the tokens that they got."
        for outcome, count in basis.cut_short.items()
    ]
    if basis.other_settings:
        lines.append(
            f"Settings changed while it was recorded: {basis.other_settings:,} requests were decided by other ones "
            "than the simulated ones, which most of them had."
        )
    return lines


def _fleet_lines(answer: ClosedLoopResult) -> list[str]:
    basis = answer.basis
    lines = []
    if basis.lost:
        lines.append(f"{basis.lost:,} times a worker was lost: it is, at that time, in each run.")
    if basis.warm:
        lines.append("The record begins in the middle: workers had something in their caches then, and here nothing.")
    return [*lines, *notes(answer)]


def notes(answer: ClosedLoopResult) -> list[str]:
    """What the runs do not have that a deployment has, and which of the settings asked for that makes vain."""
    found = ["Routers know at once what engines do."]
    if answer.unread:
        vain = ", ".join(answer.unread)
        found.append(f"Nothing in these runs goes by these settings, whatever they change in a deployment: {vain}.")
    return found


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _ms(value: float) -> str:
    return f"{value:,.1f} ms" if value < 100 else f"{value:,.0f} ms"
