"""Sentences on one decision on the size of the fleet: its reason, its outcome, and the result of making it again."""

from __future__ import annotations

from collections.abc import Iterator

from core.event_json import time_text
from core.events.scale import ScaleDecided
from projections.scaling import scale_decision as rules
from projections.scaling.scale_rules import RULES
from projections.scaling.scale_settings import ScaleSettings
from replay.explain.scale_explanation import ScaleOutcome, ScaleWindow
from replay.verify.scale_checks import CUT, ScaleVerdict, differing_field

MILLI = 1000
_PLAIN_REASONS = {
    rules.IDLE: "there is no demand",
    rules.FROM_ZERO: "requests came while there was no worker",
    rules.JUDGED: "the queue predicts that fewer are enough, and the judge's simulations found fewer too few",
    rules.NO_HISTORY: "no size of a request is known yet, so the fleet stays as it is",
}


def scale_reason(decided: ScaleDecided, settings: ScaleSettings, window: ScaleWindow | None) -> str:
    """The reason of the target. A reason of other rules stands as it is recorded."""
    match decided.bound:
        case rules.GOAL:
            why = (
                f"the fewest that are predicted to serve {_share(decided.goal_bp)} of requests within "
                f"{settings.ttft_ms} ms to the first token and {settings.itl_ms} ms per further token"
            )
            why += _lower_goal(decided, settings)
        case rules.CEILING:
            why = _ceiling_reason(decided, settings)
        case rules.MAX:
            why = "more are required, and the settings allow no more (max, devices_max)"
            if decided.is_eased:
                why += f"; {_ceiling_reason(decided, settings)}"
        case rules.BURST:
            why = f"{decided.burst_m / MILLI:.2f} requests a second came in the last moments, which is a burst"
        case rules.MIN:
            why = f"{decided.required} would be enough, and the settings ask for so many (min)"
        case rules.BUDGET:
            why = (
                f"{decided.sought} are sought, and all fleets together have {decided.budget} devices: ones of a higher "
                "priority come first, and equal ones share"
            )
        case rules.DOWN_WINDOW:
            why = _window_reason(decided, settings, window)
        case _:
            why = _PLAIN_REASONS.get(decided.bound, decided.bound)
    return f"{_workers(decided.target)}: {why}."


def _ceiling_reason(decided: ScaleDecided, settings: ScaleSettings) -> str:
    """The goal where no fleet reaches the one of the settings."""
    why = (
        f"a fleet without any wait would serve {_share(decided.ceiling_bp)} of requests within the bounds, so "
        f"{_share(decided.goal_bp)} was sought instead of {settings.attainment:g} %"
    )
    if decided.is_eased:
        why += (
            f"; the goal was sought by eased bounds: waits of at most {settings.ttft_ms} ms, where no worker is faster"
        )
    return why


def _lower_goal(decided: ScaleDecided, settings: ScaleSettings) -> str:
    """The reasons why less is sought than the settings ask for; empty if it is not less."""
    if decided.goal_bp >= settings.attainment_bp:
        return ""
    forecast, above_bp, reasons = decided.forecast, settings.attainment_bp, list[str]()
    if decided.version in RULES:
        above_bp = rules.goal_above_bp(above_bp, forecast, decided.version)
    if above_bp < settings.attainment_bp:
        reasons.append(f"the demand lies {100 * forecast.upper_m / forecast.rate_m - 100:.0f} % above the expected one")
    if decided.goal_bp < above_bp:
        reasons.append("earlier requests attained more")
    return f"; {settings.attainment:g} % are asked for, and {' and '.join(reasons)}"


def _window_reason(decided: ScaleDecided, settings: ScaleSettings, window: ScaleWindow | None) -> str:
    """The reason why the fleet does not shrink yet."""
    span_s = settings.down_window_s
    if window is None:
        return f"more than {decided.required} were required within the last {span_s} s"
    if not window.is_full:
        return f"{decided.required} would be enough, but the planner has not decided for {span_s} s without a gap yet"
    return f"{decided.required} would be enough now, but {window.required} were required within the last {span_s} s"


def outcome_sentences(decided: ScaleDecided, outcome: ScaleOutcome) -> Iterator[str]:
    """The orders, the failures, and the time until the fleet had the size."""
    applied, missing = outcome.applied, decided.target - decided.ready - decided.starting
    if applied is None and missing:
        yield "Nothing was ordered: the planner advises, or the log ends here."
    elif applied is None:
        yield "No order was needed: so many workers were ready or started already."
    else:
        yield f"Ordered: {_workers(applied.started)} to start, {_workers(applied.drained)} to drain."
    for failure in outcome.failures:
        of = f"Order {failure.start}" if failure.start else "A worker"
        yield f"{of} failed after {_seconds(decided, failure.at_ms)}: {failure.reason}."
    if outcome.reached_ms is not None and decided.ready != decided.target:
        yield f"{_workers(decided.target)} were ready after {_seconds(decided, outcome.reached_ms)}."
    if outcome.changed_ms is not None:
        yield f"The next target, {outcome.changed_to}, was decided at {time_text(outcome.changed_ms)}."


def verdict_sentence(decided: ScaleDecided, verdict: ScaleVerdict) -> str:
    """The result of making the decision again."""
    if verdict.reason == CUT:
        return "It is not judged: the log lacks messages before it."
    if verdict.remade is None:
        return f"It is not judged: rules of version {decided.version} made it, and this program does not have them."
    if verdict.is_equal(decided):
        return "Made again from the log, it comes out the same."
    return f"MADE AGAIN FROM THE LOG, IT COMES OUT OTHERWISE: `{differing_field(decided, verdict.remade)}` differs."


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def _share(hundredths: int) -> str:
    return f"{hundredths / 100:.2f} %"


def _seconds(decided: ScaleDecided, at_ms: int) -> str:
    return f"{(at_ms - decided.at_ms) / MILLI:.0f} s"
