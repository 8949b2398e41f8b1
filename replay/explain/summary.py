"""Summary: an explanation in a few sentences, of which the first names what took longest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from replay.explain.explanation import AttemptExplanation, CoursePart, FirstTokenPhases, RejectionExplanation
from replay.explain.waiting import NEAR_MS

WAITED_FOR = {
    "full": "workers had all that they may have",
    "overloaded": "too much waited in the workers' engines",
    "behind": "others came first",
    "no_worker": "no worker was there, and one was started",
    "prefill": "its worker computed other prompts",
}
"""The words of `core.events.routing.WAITS_FOR` as phrases."""
EVICTED = frozenset({"removed_unseen", "removed_later", "cleared"})
"""Verdicts of `CachePrediction`: the cache had the blocks, and lost them before the request came there."""
MOST = 0.5
"""A part with this share of the time is the cause; without one, the two largest are named."""
AFTER = frozenset({"decode", "written"})
"""Kinds of parts behind the first token."""
LOG_AWAY_MS = 1_000
"""A decision that the log stores so late was made while the log was away: batches wait for milliseconds."""
STOOD_STILL = 5.0
STOOD_STILL_MS = 200
"""An engine that takes this many times its estimate, and so much longer, with no other prompt to compute, stood still
or is slow."""
OFF = 2.0
OFF_MIN_MS = 10
"""An estimate is off if the time differs from it by this factor, and by so many milliseconds."""


class _Wait(NamedTuple):
    """A time in which the client had nothing: until its first token, or a pause of its answer."""

    attempt: AttemptExplanation
    """That ended it."""
    parts: list[CoursePart]

    @property
    def ms(self) -> float:
        """Its length."""
        return sum(map(_length_ms, self.parts))


def _length_ms(part: CoursePart) -> float:
    return part.to_ms - part.from_ms


def summarize(
    attempts: list[AttemptExplanation], rejections: list[RejectionExplanation], parts: list[list[CoursePart]]
) -> list[str]:
    """The sentences, two to five; none where the log tells nothing but decisions. `parts` has those of each attempt
    (`replay.explain.course`)."""
    if not attempts:
        return [_refused(rejections[-1])] if rejections else []
    waits = list(_waits(attempts, parts))
    if not waits:
        last = attempts[-1]
        return [f"No first token is in the log: {_ended(last) or 'it was under way when the log ends'}."]
    longest = max(waits, key=lambda wait: wait.ms)
    return [*_late_reader(attempts[-1], parts), _first(longest), *_cache(longest.attempt), *_rest(attempts)]


def _waits(attempts: list[AttemptExplanation], parts: list[list[CoursePart]]) -> Iterator[_Wait]:
    waited: list[CoursePart] = []
    for attempt, own in zip(attempts, parts, strict=True):
        waited += [part for part in own if part.kind not in AFTER]
        if attempt.phases is not None:
            yield _Wait(attempt, waited)
            waited = []


def _late_reader(last: AttemptExplanation, parts: list[list[CoursePart]]) -> Iterator[str]:
    """The client's part in the time, where it is more than that of all that comes before the last token."""
    whole_ms = sum(_length_ms(part) for own in parts for part in own)
    written_ms = sum(_length_ms(part) for part in parts[-1] if part.kind == "written")
    if last.delay is not None and written_ms > MOST * whole_ms:
        yield (
            f"The client had the answer after {whole_ms:,.0f} ms, {_share(written_ms, whole_ms)} of it behind "
            f"the last token: it was slow to read ({last.delay.unsent_bytes:,} bytes waited for it)."
        )


def _refused(last: RejectionExplanation) -> str:
    why = last.reason.replace("_", " ")
    waited = last.queued
    if waited is None or not waited.waited_ms:
        return f"It was refused with {last.status}: {why}."
    return f"It was refused with {last.status} after {waited.waited_ms} ms in the router: {_why_waited(waited.why)}."


def _first(wait: _Wait) -> str:
    """The longest part of the wait, or the two longest."""
    attempt, took = wait.attempt, round(wait.ms)
    what = "First token" if attempt.pause_ms is None else "The answer broke off, and went on"
    away = ""
    if attempt.log_late_ms >= LOG_AWAY_MS:
        away = f"; the log was away, and stored the decision {attempt.log_late_ms / 1000:,.1f} s late"
    spent: dict[str, float] = {}
    again = any(part.kind == "unanswered" and _length_ms(part) >= OFF_MIN_MS for part in wait.parts)
    for part in wait.parts:
        phrase = _computing(attempt, part, again=again) if part.kind == "prefill" else _phrase(attempt, part)
        spent[phrase] = spent.get(phrase, 0.0) + _length_ms(part)
    causes = sorted(spent, key=lambda phrase: -spent[phrase])
    if not took or not causes:
        return f"{what} after {took} ms{away}."
    if spent[causes[0]] >= MOST * wait.ms:
        return f"{what} after {took:,} ms, {_share(spent[causes[0]], wait.ms)} of it {causes[0]}{away}."
    named = " and ".join(f"{_share(spent[cause], wait.ms)} {cause}" for cause in causes[:2])
    return f"{what} after {took:,} ms: {named}{away}."


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count:,} tokens"


def _share(ms: float, took_ms: float) -> str:
    return f"{100 * ms / took_ms:.0f} %"


def _phrase(attempt: AttemptExplanation, part: CoursePart) -> str:  # a phrase for each kind
    """The part, as words behind a number of milliseconds; of an attempt that ended a wait."""
    worker = attempt.worker_name
    match part.kind:
        case "behind":
            return _behind(attempt, part)
        case "remote":
            return _elsewhere(attempt)
        case "queued":
            why = "full" if attempt.queued is None else attempt.queued.why
            return f"waiting in the router, since {_why_waited(why)}"
        case "between" if attempt.pause_ms is not None:
            return f"until it was sent to {worker}"
        case "between" | "unanswered":
            return "lost to attempts before this one, which made no token"
        case kind:
            return {
                "loop": "before its front end read it: the event loop was busy",
                "body": "for its client to send the body",
                "prepare": f"rendering and tokenizing its prompt of {_tokens(attempt.prompt_tokens)} in the front end",
                "held": f"held in the router, since {WAITED_FOR['prefill']}",
                "route": f"until a worker was there for it, {worker}",
                "link": f"on the way to {worker} and back, or in its process",
            }[kind]


def _behind(attempt: AttemptExplanation, part: CoursePart) -> str:
    if part.recorded or attempt.phases is None:
        return f"waiting in the engine of {attempt.worker_name}{_beside(attempt)}"
    count, tokens = attempt.phases.behind_requests, attempt.phases.behind_tokens
    requests = "a request" if count == 1 else f"{count} requests"
    return f"behind {requests} on {attempt.worker_name}, with {_tokens(tokens)} to compute"


def _elsewhere(attempt: AttemptExplanation) -> str:
    prefill = attempt.prefill
    if prefill is None or prefill.outcome == "pulled":
        name = "another worker" if prefill is None else prefill.name
        return f"for {name} to compute the prompt, and to fetch it from there"
    return f"waiting in vain for another to compute the prompt ({prefill.outcome})"


def _beside(attempt: AttemptExplanation) -> str:
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
    return f", which had {requests} of {tokens} at the same time (clocks agree within {NEAR_MS} ms)"


def _near(phases: FirstTokenPhases | None) -> str:
    if phases is None or not phases.near_requests:
        return ""
    count = phases.near_requests
    return f", where {count} more {'was' if count == 1 else 'were'} sent within {phases.near_ms} ms"


def _computing(attempt: AttemptExplanation, part: CoursePart, *, again: bool) -> str:
    """`again`: another worker may have computed it in part, and made no token."""
    cached = attempt.real_cached_tokens
    if cached is None:  # no first token yet, or an engine that does not say it
        cached = 0 if attempt.ttft_ms is None else attempt.predicted_cached_tokens
    computed = max(0, attempt.prompt_tokens - cached)
    what = f"computing {_tokens(computed)} of its prompt{' again' if again else ''} on {attempt.worker_name}"
    if attempt.prefill is not None and attempt.prefill.outcome not in {"", "pulled"}:
        what += f" after all ({attempt.prefill.outcome})"
    lost = attempt.predicted_cached_tokens - cached
    if attempt.reuse is not None and lost > 0 and attempt.reuse.verdict in EVICTED and lost >= MOST * computed:
        what += f", of which its cache had lost {_tokens(lost)}"
    what += _beside(attempt) if part.recorded else _near(attempt.phases)
    timed = next((row.timed for row in attempt.candidates if row.chosen), None)
    if timed is None or not timed.own_ms:
        return what
    own, expected = _length_ms(part), timed.own_ms
    factor = max(own, expected) / max(1.0, min(own, expected))
    if abs(own - expected) < OFF_MIN_MS or factor < OFF:
        return what
    estimated = f"(estimated {expected:,.1f} ms: {factor:.0f} times off)"
    alone = part.recorded and not attempt.concurrent
    if alone and factor >= STOOD_STILL and own - expected >= STOOD_STILL_MS:
        return f"{what}: its engine stood still or was slow {estimated}"
    return f"{what} {estimated}"


def _why_waited(why: str) -> str:
    return WAITED_FOR.get(why, why.replace("_", " "))


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
