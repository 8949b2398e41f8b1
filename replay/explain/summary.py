"""Summary: an explanation in a few sentences, of which the first names what took longest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from replay.explain.explanation import AttemptExplanation, FirstTokenPhases, RejectionExplanation

WAITED_FOR = {
    "full": "workers had all that they may have",
    "overloaded": "too much waited in the workers' engines",
    "behind": "others came first",
    "prefill": "its worker computed other prompts",
}
"""The words of `core.events.routing.WAITS_FOR` as phrases."""
MOST = 0.5
"""A part with this share of the time is the cause; without one, the two largest are named."""
OFF = 2.0
OFF_MIN_MS = 10
"""An estimate is off if the time differs from it by this factor, and by so many milliseconds."""


class _Part(NamedTuple):
    ms: int
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
    return [_first(slowest, slowest.phases), *_cache(slowest), *_rest(attempts)]


def _took_ms(attempt: AttemptExplanation) -> int:
    return -1 if attempt.phases is None else attempt.phases.ttft_ms


def _refused(last: RejectionExplanation) -> str:
    why = last.reason.replace("_", " ")
    waited = last.queued
    if waited is None or not waited.waited_ms:
        return f"It was refused with {last.status}: {why}."
    return f"It was refused with {last.status} after {waited.waited_ms} ms in the router: {_why_waited(waited.why)}."


def _first(attempt: AttemptExplanation, phases: FirstTokenPhases) -> str:
    """The longest of the client's waits, or the two longest."""
    took = phases.ttft_ms
    what = "First token" if attempt.pause_ms is None else "The answer broke off, and went on"
    parts = sorted(_parts(attempt, phases), key=lambda part: -part.ms)
    if not took or not parts:
        return f"{what} after {took} ms."
    if parts[0].ms >= MOST * took:
        return f"{what} after {took:,} ms, {_share(parts[0].ms, took)} of it {parts[0].what}."
    named = " and ".join(f"{_share(part.ms, took)} {part.what}" for part in parts[:2])
    return f"{what} after {took:,} ms: {named}."


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count:,} tokens"


def _share(ms: int, took_ms: int) -> str:
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
