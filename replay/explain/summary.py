"""Summary: an explanation in a few sentences, of which the first names what took longest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from replay.explain.explanation import (
    AttemptExplanation,
    FirstTokenPhases,
    RejectionExplanation,
    StageTime,
)

WAITED_FOR = {
    "full": "workers had all that they may have",
    "overloaded": "too much waited in the workers' engines",
    "behind": "others came first",
    "prefill": "its worker computed other prompts",
}
"""The words of `core.events.routing.WAITS_FOR` as phrases."""
EVICTED = frozenset({"removed_unseen", "removed_later", "cleared"})
"""Verdicts of `CachePrediction`: the cache had the blocks, and lost them before the request came there."""
MOST = 0.5
"""A part with this share of the time is the cause; without one, the two largest are named."""
DECODE = "decode"
"""The stage behind the first token."""
LOG_AWAY_MS = 1_000
"""A decision that the log stores so late was made while the log was away: batches wait for milliseconds."""
STOOD_STILL = 5.0
STOOD_STILL_MS = 200
"""An engine that takes this many times its estimate, and so much longer, with no other prompt to compute, stood still
or is slow."""
OFF = 2.0
OFF_MIN_MS = 10
"""An estimate is off if the time differs from it by this factor, and by so many milliseconds."""


class _Part(NamedTuple):
    ms: float
    what: str
    """As a phrase behind a number of milliseconds."""


def summarize(attempts: list[AttemptExplanation], rejections: list[RejectionExplanation]) -> list[str]:
    """The sentences, two to four; none where the log tells nothing but decisions."""
    if not attempts:
        return [_refused(rejections[-1])] if rejections else []
    slowest = max(attempts, key=_took_ms)
    if slowest.phases is None:
        last = attempts[-1]
        return [f"No first token is in the log: {_ended(last) or 'it was under way when the log ends'}."]
    late = _late_reader(attempts)
    return [*late, _first(slowest, slowest.phases), *_cache(slowest), *_rest(attempts)]


def _took_ms(attempt: AttemptExplanation) -> int:
    if attempt.phases is None:
        return -1
    return _until_first_token(attempt) if attempt.stages else attempt.phases.ttft_ms


def _until_first_token(attempt: AttemptExplanation) -> int:
    """The time of its stages before the first token, in whole milliseconds."""
    return round(sum(stage.ms for stage in attempt.stages if stage.name != DECODE))


def _late_reader(attempts: list[AttemptExplanation]) -> Iterator[str]:
    """The client's part in the time, where it is more than that of all that comes before the last token."""
    delay = attempts[-1].delay
    if delay is None or not any(attempt.stages for attempt in attempts):
        return
    before_ms = sum(stage.ms for attempt in attempts for stage in attempt.stages)
    whole_ms = before_ms + delay.written_ms
    if delay.written_ms >= MOST * whole_ms:
        yield (
            f"The client had the answer after {whole_ms:,.0f} ms, {_share(delay.written_ms, whole_ms)} of it behind "
            f"the last token: it was slow to read ({delay.unsent_bytes:,} bytes waited for it)."
        )


def _refused(last: RejectionExplanation) -> str:
    why = last.reason.replace("_", " ")
    waited = last.queued
    if waited is None or not waited.waited_ms:
        return f"It was refused with {last.status}: {why}."
    return f"It was refused with {last.status} after {waited.waited_ms} ms in the router: {_why_waited(waited.why)}."


def _first(attempt: AttemptExplanation, phases: FirstTokenPhases) -> str:
    """The longest of the client's waits, or the two longest."""
    took = _took_ms(attempt)
    what = "First token" if attempt.pause_ms is None else "The answer broke off, and went on"
    there = _stage_parts(attempt, phases) if attempt.stages else _parts(attempt, phases)
    parts = sorted(there, key=lambda part: -part.ms)
    away = ""
    if attempt.log_late_ms >= LOG_AWAY_MS:
        away = f"; the log was away, and stored the decision {attempt.log_late_ms / 1000:,.1f} s late"
    if not took or not parts:
        return f"{what} after {took} ms{away}."
    if parts[0].ms >= MOST * took:
        return f"{what} after {took:,} ms, {_share(parts[0].ms, took)} of it {parts[0].what}{away}."
    named = " and ".join(f"{_share(part.ms, took)} {part.what}" for part in parts[:2])
    return f"{what} after {took:,} ms: {named}{away}."


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count:,} tokens"


def _share(ms: float, took_ms: float) -> str:
    return f"{100 * ms / took_ms:.0f} %"


def _parts(attempt: AttemptExplanation, phases: FirstTokenPhases) -> Iterator[_Part]:
    """The parts of the wait; together they are all of it."""
    before, held = phases.before_ms, attempt.hold.held_ms or 0 if attempt.hold is not None else 0
    if attempt.queued is not None and attempt.queued.waited_ms is not None:
        waited = min(before, attempt.queued.waited_ms)
        before -= waited
        if held := min(held, waited):
            yield _Part(held, f"held in the router, since {WAITED_FOR['prefill']}")
        if waited > held:
            yield _Part(waited - held, f"waiting in the router, since {_why_waited(attempt.queued.why)}")
    if before > 0:
        lost = "lost to attempts before this one, which made no token"
        yield _Part(before, lost if attempt.pause_ms is None else f"until it was sent to {attempt.worker_name}")
    if phases.behind_ms:
        count, tokens = phases.behind_requests, phases.behind_tokens
        requests = "a request" if count == 1 else f"{count} requests"
        yield _Part(phases.behind_ms, f"behind {requests} on {attempt.worker_name}, with {_tokens(tokens)} to compute")
    own, prefill = phases.rest_ms, attempt.prefill
    if prefill is not None and prefill.outcome:
        elsewhere = min(own, prefill.wait_ms + prefill.pull_ms)
        own -= elsewhere
        if prefill.outcome == "pulled":
            yield _Part(elsewhere, f"for {prefill.name} to compute the prompt, and to fetch it from there")
        else:
            yield _Part(elsewhere, f"waiting in vain for another to compute the prompt ({prefill.outcome})")
    if own > 0:
        yield _Part(own, _computing(attempt, phases, own))


def _stage_parts(attempt: AttemptExplanation, phases: FirstTokenPhases) -> Iterator[_Part]:
    """The recorded stages before the first token; together they are all of the wait."""
    worker, hold = attempt.worker_name, WAITED_FOR["prefill"]
    why = _why_waited(attempt.queued.why) if attempt.queued is not None else WAITED_FOR["full"]
    phrases = {
        "loop": "before its front end read it: the event loop was busy",
        "body": "for its client to send the body",
        "prepare": f"rendering and tokenizing its prompt of {_tokens(attempt.prompt_tokens)} in the front end",
        "queue": f"waiting in the router, since {why}",
        "hold": f"held in the router, since {hold}",
        "route": f"until a worker was there for it, {worker}",
        "link": f"on the way to {worker} and back, or in its process",
    }
    for stage in attempt.stages:
        match stage.name:
            case "decode":
                continue
            case "elsewhere":
                yield _Part(stage.ms, _elsewhere(attempt))
            case "engine_queue":
                yield _Part(stage.ms, f"waiting in the engine of {worker}{_beside(attempt, phases)}")
            case "prefill":
                yield _Part(stage.ms, _prefill(attempt, phases, stage))
            case name:
                yield _Part(stage.ms, phrases[name])


def _elsewhere(attempt: AttemptExplanation) -> str:
    prefill = attempt.prefill
    if prefill is None or prefill.outcome == "pulled":
        name = "another worker" if prefill is None else prefill.name
        return f"for {name} to compute the prompt, and to fetch it from there"
    return f"waiting in vain for another to compute the prompt ({prefill.outcome})"


def _beside(attempt: AttemptExplanation, phases: FirstTokenPhases) -> str:
    """The prompts that the worker had to compute beside it: as a fact where the engine certainly computed both at
    once, else as there at the same time, within the bound of clocks."""
    sure = [each for each in attempt.concurrent if each.certain]
    named = sure or attempt.concurrent
    if not named:
        return ""
    requests = "1 other prompt" if len(named) == 1 else f"{len(named)} other prompts"
    tokens = _tokens(sum(each.tokens for each in named))
    if sure:
        return f", which computed {requests} of {tokens} at the same time"
    return f", which had {requests} of {tokens} at the same time (clocks agree within {phases.near_ms} ms)"


def _prefill(attempt: AttemptExplanation, phases: FirstTokenPhases, stage: StageTime) -> str:
    cached = attempt.real_cached_tokens or 0
    worker = attempt.worker_name
    computed = max(0, attempt.prompt_tokens - cached)
    what = f"computing {_tokens(computed)} of its prompt on {worker}"
    if attempt.prefill is not None and attempt.prefill.outcome not in {"", "pulled"}:
        what += f" after all ({attempt.prefill.outcome})"
    lost = attempt.predicted_cached_tokens - cached
    if attempt.reuse is not None and lost > 0 and attempt.reuse.verdict in EVICTED and lost >= MOST * computed:
        what += f", of which its cache had lost {_tokens(lost)}"
    what += _beside(attempt, phases)
    expected = stage.expected_ms
    if expected is None or abs(stage.ms - expected) < OFF_MIN_MS:
        return what
    factor = max(stage.ms, expected) / max(1.0, min(stage.ms, expected))
    if factor >= STOOD_STILL and stage.ms - expected >= STOOD_STILL_MS and not attempt.concurrent:
        return f"{what}: its engine stood still or was slow (estimated {expected:,.1f} ms: {factor:.0f} times off)"
    return f"{what} (estimated {expected:,.1f} ms: {factor:.0f} times off)" if factor >= OFF else what


def _why_waited(why: str) -> str:
    return WAITED_FOR.get(why, why.replace("_", " "))


def _computing(attempt: AttemptExplanation, phases: FirstTokenPhases, own_ms: int) -> str:
    cached = attempt.real_cached_tokens or 0
    what = f"computing {_tokens(max(0, attempt.prompt_tokens - cached))} of its prompt on {attempt.worker_name}"
    if phases.near_requests:
        count = phases.near_requests
        what += f", where {count} more {'was' if count == 1 else 'were'} sent within {phases.near_ms} ms"
    estimated = attempt.candidates[0].timed.own_ms if attempt.candidates and attempt.candidates[0].timed else None
    if estimated is not None and estimated > 0 and abs(own_ms - estimated) >= OFF_MIN_MS:
        factor = max(own_ms, estimated) / max(1.0, min(own_ms, estimated))
        if factor >= OFF:
            what += f" (estimated {estimated:,.1f} ms: {factor:.0f} times off)"
    return what


def _cache(attempt: AttemptExplanation) -> Iterator[str]:
    """The tokens that its cache had, where these are fewer than was expected."""
    real, predicted = attempt.real_cached_tokens, attempt.predicted_cached_tokens
    if real is not None and attempt.reuse is not None and real < predicted:
        prompt = _tokens(attempt.prompt_tokens)
        yield f"The cache had {real:,} of its {prompt}, not {predicted:,}: {attempt.reuse.text}."


def _rest(attempts: list[AttemptExplanation]) -> Iterator[str]:
    """The answer behind the first token."""
    last, firsts = attempts[-1], [each for each in attempts if each.first_token_ms is not None]
    if len(firsts) > 1:
        names = " to ".join(each.worker_name for each in firsts)
        yield f"The client had its first token after {firsts[0].first_token_ms:,} ms; the answer moved from {names}."
    if ended := _ended(last):
        yield f"{ended[0].upper()}{ended[1:]}."


def _ended(last: AttemptExplanation) -> str:
    """The outcome and the speed of the answer; empty while it is under way."""
    if last.outcome is None or last.duration_ms is None:
        return ""
    ended = f"it ended with {last.outcome.replace('_', ' ')} after {last.duration_ms:,} ms"
    tokens = last.output_tokens or 0
    if last.ttft_ms is None or tokens < 2:
        return ended
    each_ms = (last.duration_ms - last.ttft_ms) / (tokens - 1)
    return f"{ended}: {_tokens(tokens)}, one every {each_ms:.1f} ms"
