"""Outcomes of what-if as text: the verdict, tables of both sides, and the basis of the estimates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from api.cli.quantities import UNKNOWN, count_text, percent_text, plural
from api.cli.renderer import Command, Notes, Table, Text
from core.event_json import time_text
from projections.policy.prefill_time import DEFAULT_TIME
from replay.recording.request_history import DECLINED
from replay.whatif.first_token_fit import FirstTokenFit
from replay.whatif.outcome import DecisionChange, LoadBalance, Outcome, by_name
from replay.whatif.scenario import QUEUEING

REGRET = (
    "Regret: blocks that only the recorded choice had to compute, and the time by which the other choice's first token "
    "is sooner."
)
RECORDED = "as it was recorded, measured"
"""The row of the record; the times of all others are estimates."""
EVEN_MS = 0.05
"""A mean that changes by less is said to stay."""
NEEDS_KV = frozenset({"round-robin", "random", "least-loaded"})
"""Policies that look at no weight."""


def what_if_text(outcomes: Sequence[Outcome]) -> Text:
    """The page on one scenario, or on several, of which `outcomes` has the best first."""
    return _one(outcomes[0]) if len(outcomes) == 1 else _several(outcomes)


def what_if_json(outcomes: Sequence[Outcome], *, changes: bool) -> dict[str, Any]:
    """The best first; `best` is its settings, or null if what was recorded is better."""
    best = outcomes[0]
    rows = []
    for outcome in outcomes:
        row: dict[str, Any] = {"label": outcome.scenario.label, **msgspec.structs.asdict(outcome)}
        if not changes:
            del row["changes"], row["first_tokens"]
        rows.append(row)
    return {"best": best.scenario.settings if best.better and not best.refused else None, "outcomes": rows}


def _one(outcome: Outcome) -> Text:
    yield from (f"what if {outcome.scenario.label}?", _range(outcome), "", _verdict(outcome))
    if outcome.better and outcome.scenario.settings:
        yield _set_line(outcome)
    yield from ("", _sides(outcome), "", _requests(outcome), *_cases(outcome))
    yield from ("", Notes("What this rests on:", _basis([outcome])))


def _several(outcomes: Sequence[Outcome]) -> Text:
    best = outcomes[0]
    yield from (f"{len(outcomes)} scenarios over the same decisions", _range(best), "")
    if best.better:
        yield from (f"best: {best.scenario.label}", _verdict(best))
        if best.scenario.settings:
            yield _set_line(best)
    else:
        yield "None of them is better than what was recorded."
    yield from ("", _ranking(outcomes))
    if best.better:
        yield from _cases(best)
    yield from ("", Notes("What this rests on:", _basis(outcomes)))


def _range(outcome: Outcome) -> str:
    policies = ", ".join(outcome.policies)
    first, last = time_text(outcome.first_ms), time_text(outcome.last_ms)
    return f"{count_text(outcome.decisions, 'decision')}, recorded from {first} to {last} under policy {policies}"


def _set_line(outcome: Outcome) -> Command:
    return Command(f"  contrail settings set {outcome.scenario.set_text}")


def _verdict(outcome: Outcome) -> str:
    """The answer in one or two sentences."""
    if outcome.refused:
        return f"No worker would have been left for {outcome.refused:,} of {count_text(outcome.decisions, 'request')}."
    if not outcome.changed and outcome.scenario.is_unread:
        return _unread(outcome.scenario.unread)
    if not outcome.changed:
        return "Nothing would have changed: every request goes where it went."
    cached = (
        f"{percent_text(outcome.hit_rate_new)} of all prompt tokens expected in a cache instead of "
        f"{percent_text(outcome.hit_rate_recorded)}"
    )
    if not outcome.timed:
        return f"{'Better' if outcome.better else 'Not better'}: {cached}; times cannot be estimated."
    change = outcome.ttft_new_ms - outcome.ttft_recorded_ms
    if abs(change) < EVEN_MS:
        return f"About the same: first tokens as soon as recorded, {cached}."
    word, when = ("Better", "sooner") if change < 0 else ("Worse", "later")
    means = f"{outcome.ttft_recorded_ms:.1f} ms measured → {outcome.ttft_new_ms:.1f} ms"
    return f"{word}: first tokens an estimated {abs(change):.1f} ms {when} in the mean ({means}), {cached}."


def _sides(outcome: Outcome) -> Table:
    changed = f"{outcome.changed:,} ({percent_text(outcome.changed / max(1, outcome.decisions))})"
    rows = [
        ("decisions that change", "", changed),
        (
            "prompt tokens expected in a cache",
            percent_text(outcome.hit_rate_recorded),
            percent_text(outcome.hit_rate_new),
        ),
        ("regret of the record, in blocks", "", f"{outcome.regret_blocks:+,}"),
    ]
    if outcome.timed:
        times = (f"{outcome.ttft_recorded_ms:.1f} ms", f"{outcome.ttft_new_ms:.1f} ms")
        rows.append(("mean time to first token: measured; estimated", *times))
    rows += _evenness(outcome.spread_recorded, outcome.spread_new)
    if outcome.astray:
        rows.append(("sent to a worker that was gone", "", f"{outcome.astray:,}"))
    return Table(("", "recorded", "what if"), rows, "<>>")


def _evenness(recorded: LoadBalance, new: LoadBalance) -> list[tuple[str, str, str]]:
    return [
        ("requests per worker: deviation / mean", f"{recorded.requests_cv:.2f}", f"{new.requests_cv:.2f}"),
        (
            "requests per worker: most / mean",
            f"{recorded.requests_max_over_mean:.2f}",
            f"{new.requests_max_over_mean:.2f}",
        ),
        ("active blocks per worker: deviation / mean", f"{recorded.blocks_cv:.2f}", f"{new.blocks_cv:.2f}"),
        (
            "active blocks per worker: most / mean",
            f"{recorded.blocks_max_over_mean:.2f}",
            f"{new.blocks_max_over_mean:.2f}",
        ),
    ]


def _requests(outcome: Outcome) -> Table:
    before, after = (by_name(side, outcome.names) for side in (outcome.requests_recorded, outcome.requests_new))
    rows = [(name, f"{before[name]:,}", f"{after[name]:,}") for name in sorted(before)]
    return Table(("requests on", "recorded", "what if"), rows, "<>>")


def _ranking(outcomes: Sequence[Outcome]) -> Table:
    first = outcomes[0]
    rows = [
        [
            each.scenario.label,
            f"≈ {each.ttft_new_ms:.1f} ms" if each.timed else UNKNOWN,
            percent_text(each.hit_rate_new),
            f"{each.regret_blocks:+,}",
            f"{each.changed:,}",
            *_load(each.spread_new),
            f"{each.refused:,}" if each.refused else "",
        ]
        for each in outcomes
    ]
    time = f"{first.ttft_recorded_ms:.1f} ms" if first.ttft_recorded_ms else UNKNOWN
    rows.append([RECORDED, time, percent_text(first.hit_rate_recorded), "", "", *_load(first.spread_recorded), ""])
    heads = ["scenario", "first token", "cached", "regret", "changed", "requests ±", "blocks ±", "refused"]
    if not any(each.refused for each in outcomes):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return Table(heads, rows, "<" + ">" * (len(heads) - 1))


def _load(spread: LoadBalance) -> tuple[str, str]:
    return f"{spread.requests_cv:.2f}", f"{spread.blocks_cv:.2f}"


def _cases(outcome: Outcome) -> Text:
    for title, cases in (
        ("the recorded choice cost most here", outcome.worst),
        ("this scenario would cost most here", outcome.losses),
    ):
        if cases:
            yield from ("", f"{title}:", _case_table(outcome, cases))


def _case_table(outcome: Outcome, cases: Sequence[DecisionChange]) -> Table:
    rows = [
        (
            time_text(case.time_ms),
            f"{case.request}{f' (attempt {case.attempt})' if case.attempt else ''}",
            outcome.names.get(case.recorded_worker, case.recorded_worker),
            outcome.names.get(case.new_worker, case.new_worker) or "nobody",
            f"{case.regret_blocks:+,} {plural(abs(case.regret_blocks), 'block')}",
            f"{case.regret_ms:+.1f} ms" if outcome.timed else UNKNOWN,
        )
        for case in cases
    ]
    return Table(("time", "request", "went to", "instead", "regret", "estimated"), rows, "<<<<>>")


def _basis(outcomes: Sequence[Outcome]) -> Iterator[str]:
    first = outcomes[0]
    yield REGRET
    yield from (_fit_text(model, fitted) for model, fitted in first.fitted.items())
    yield (
        "Caches stay as recorded: another choice finds only blocks that the recorded choices left there, so its "
        "estimate is somewhat too low."
    )
    yield "Loads stay as recorded, too: a scenario may send many requests to one worker."
    yield f"By the engines, {percent_text(first.hit_rate_real)} of the prompt tokens came from their caches."
    if first.rejected:
        refused = plural(first.rejected, "was refused back then; it is", "were refused back then; they are")
        yield f"{count_text(first.rejected, 'request')} {refused} not decided again."
    yield from (f"{text}." for text in left_out_texts(first))
    yield from _unanswered(outcomes)
    if any(_weighs_nothing(each) for each in outcomes):
        yield "The recorded policy uses no weights: to try weights, add `--policy kv`."
    if any(each.astray for each in outcomes):
        yield "Requests sent to a worker that was gone count as if nothing was cached for them."


def left_out_texts(outcome: Outcome) -> Iterator[str]:
    """The number of decisions that are not judged, and the reasons."""
    for reason, count in outcome.left_out.items():
        why = "their workers declined them, and the next decisions on the same requests count"
        if reason != DECLINED:
            why = f"they cannot be judged from this record ({reason})"
        yield f"{count:,} {plural(count, 'decision is', 'decisions are')} left out: {why}"


def _unanswered(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Parts of the question that the record cannot answer."""
    unread = dict.fromkeys(name for each in outcomes for name in each.scenario.unread)
    if unread and not (len(outcomes) == 1 and outcomes[0].scenario.is_unread):  # else the verdict says it
        yield _unread(unread)
    if queueing := [name for name in unread if name in QUEUEING]:
        yield f"The effect of {', '.join(queueing)} shows with --closed-loop, which runs the requests again."
    if unlearned := max(each.unlearned for each in outcomes):
        recorded, do = plural(unlearned, "decision was", "decisions were"), plural(unlearned, "does", "do")
        yield (
            f"{unlearned:,} {recorded} recorded under a policy that estimates nothing, and {do} not say how long "
            f"prefills last: {DEFAULT_TIME.base_us / 1000:g} ms and {DEFAULT_TIME.per_token_m / 1000:g} us per token "
            "by default; `--set prefill_us_per_token=N` changes that."
        )


def _unread(names: Iterable[str]) -> str:
    return f"No decision depends on {', '.join(names)}: deciding again cannot show its effect."


def _fit_text(model: str, fitted: FirstTokenFit) -> str:
    if not fitted.usable:
        return (
            f"Times of {model} cannot be estimated from {count_text(fitted.samples, 'first token')}: "
            "go by cached tokens and blocks."
        )
    samples = count_text(fitted.samples, "first token")
    worth = "A poor estimate, go by blocks" if fitted.poor else "Times are estimates"
    return (
        f"{worth}: {model} takes {fitted.per_token_ms * 1000:.0f} ms per 1000 tokens to compute, those queued before "
        f"them included, by {samples}; half of those lie within {fitted.error_ms:.1f} ms of that, which explains "
        f"{percent_text(fitted.explained)} of how they differ."
    )


def _weighs_nothing(outcome: Outcome) -> bool:
    settings = outcome.scenario.settings
    return bool(settings) and "policy" not in settings and set(outcome.policies) <= NEEDS_KV
