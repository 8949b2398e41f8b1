"""An explanation as text: the reason of the decision, its candidates, and the outcome; and a table of requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from api.cli.quantities import NONE, UNKNOWN, count_text, number_text, plural
from api.cli.renderer import Command, Facts, Table, Text
from api.cli.replay.text.estimate_text import estimate_lines, hold_lines, timed_costs, timed_heads
from api.cli.replay.text.prefill_text import of_which, prefill_lines
from projections.policy.cost import BLOCK_COST_POLICIES
from replay.explain.explain import UNREAD
from replay.explain.explanation import (
    AttemptExplanation,
    CandidateRow,
    Course,
    Explanation,
    FirstTokenPhases,
    QueueWait,
)
from replay.explain.request_list import RequestList, RequestListEntry
from replay.explain.sentences import POLICY_INPUTS
from replay.explain.summary import WAITED_FOR

SHARED = "Blocks in flight are counted for each request: a block that several requests share counts several times."
_COSTS = ("cost", "= prefill", "+ decode", "+ requests")
_WORK = ("cached", "computing", "to prefill", "active", "waiting")
_KNOWN = (
    "in flight",
    "of these not in the log yet",
    "to prefill",
    "cache events until",
    "not seen yet",
    "load report",
)


def explain_text(explanation: Explanation) -> Text:
    """The explanation; blocks and costs are in blocks, under `time` and `session` costs in milliseconds."""
    yield f"request {explanation.request}, model {explanation.model}"
    yield from explanation.summary
    if explanation.course is not None and explanation.course.parts:
        yield from ("", course_table(explanation.course), "")
    if explanation.uses > 1:
        yield f"{explanation.uses} requests had this id; this is the last one that was routed"
    moved = [attempt for attempt in explanation.attempts if attempt.told_tokens]
    if len(moved) > 1:
        workers = [attempt.worker_name for attempt in explanation.attempts]
        yield f"the answer moved {len(moved)} times: {' → '.join(workers)}"
    for attempt in explanation.attempts:
        yield from ("", *_attempt(attempt))
    if explanation.unread:
        yield from ("", *explanation.unread)
    for rejection in explanation.rejections:
        reason = rejection.reason.replace("_", " ") if rejection.reason != UNREAD else "why, this program cannot read"
        if rejection.detail:
            reason = f"{reason} ({rejection.detail})"
        yield from ("", f"{rejection.time}  rejected with {rejection.status}: {reason}", *left_out(rejection.excluded))
        if rejection.queued is not None:
            yield titled([("waited", _waited(rejection.queued))])


def _attempt(attempt: AttemptExplanation) -> Text:
    yield f"{attempt.decided}  attempt {attempt.attempt}: {attempt.worker_name} ({attempt.worker})"
    yield titled(chain(_choice(attempt), _then(attempt), _setting(attempt)))
    yield from ("", candidates_table(attempt.candidates))
    more = attempt.candidates_total - len(attempt.candidates)
    if more > 0:
        yield f"  … and {more} dearer {plural(more, 'one')}, not recorded; --whole folds the log and shows them"
    yield from left_out(attempt.excluded)
    for worker, reasons in attempt.local.items():
        yield f"  this replica alone knew of {worker}: {', '.join(reasons).replace('_', ' ')}"
    yield from ("", _candidate_table(attempt.candidates, _KNOWN, map(_known, attempt.candidates)))
    if any(row.in_flight.requests > 1 for row in attempt.candidates):
        yield f"  {SHARED}"


_BAR = 40
_OFF, _OFF_MIN_MS = 5.0, 10.0
"""A part is off its estimate if it differs by this factor, and by so many milliseconds."""
PARTS = {
    "loop": "the front end's loop",
    "body": "reading the body",
    "prepare": "rendering, tokenizing",
    "queued": "queued in the router",
    "held": "held for its worker",
    "route": "being routed",
    "between": "between attempts",
    "link": "to the worker and back",
    "remote": "prompt elsewhere",
    "behind": "waiting at the engine",
    "prefill": "prefill",
    "unanswered": "without a token",
    "decode": "decode",
    "written": "written late",
}
"""The kinds of a course's parts as words."""


def course_table(course: Course) -> Table:
    """The course as one bar, a line each part, with what was expected of it."""
    begin, total = course.parts[0].from_ms, course.parts[-1].to_ms - course.parts[0].from_ms
    expected = {(each.attempt, each.kind): each.to_ms - each.from_ms for each in course.expected}
    lines = []
    for part in course.parts:
        first, last = (round(_BAR * (ms - begin) / total) for ms in (part.from_ms, part.to_ms))
        first = min(first, _BAR - 1)
        ms, attempt = part.to_ms - part.from_ms, f" #{part.attempt}" if part.attempt else ""
        bar = " " * first + "█" * max(1, last - first)
        estimate = _expected(ms, expected.get((part.attempt, part.kind)))
        words = PARTS.get(part.kind, part.kind.replace("_", " "))
        lines.append((f"  {words}{attempt}", f"{ms:,.1f} ms", f"{ms / total:.0%}", estimate, bar))
    lines.append(("  in all", f"{total:,.1f} ms", "", "", ""))
    return Table(("  course", "took", "share", "expected", ""), lines, "<>>><")


def _expected(ms: float, expected_ms: float | None) -> str:
    if expected_ms is None:
        return ""
    factor = max(ms, expected_ms) / max(1.0, min(ms, expected_ms))
    off = f", {factor:.0f} times off" if factor >= _OFF and abs(ms - expected_ms) >= _OFF_MIN_MS else ""
    return f"{expected_ms:,.1f} ms{off}"


def titled(rows: Iterable[tuple[str, str]]) -> Facts:
    """Each text beside its title."""
    return Facts(rows, 9)


def _choice(attempt: AttemptExplanation) -> Iterator[tuple[str, str]]:
    """The wait before the decision, its reason, and what it was estimated on."""
    if attempt.queued is not None:
        yield "waited", _waited(attempt.queued)
    yield from hold_lines(attempt)
    if attempt.told_tokens:
        yield "goes on", _goes_on(attempt)
    yield "why", attempt.why
    if attempt.runner_up is not None:
        yield "else", attempt.runner_up.text
    yield from estimate_lines(attempt.estimates)
    yield from prefill_lines(attempt)


def _waited(queued: QueueWait) -> str:
    took = "for a time that the log does not tell" if queued.waited_ms is None else f"{queued.waited_ms} ms"
    why = WAITED_FOR.get(queued.why, queued.why)
    who = f"priority {queued.priority}" + (f", tenant {queued.tenant}" if queued.tenant else "")
    return f"{took}, since {queued.time}: {why}; {queued.depth} waited already ({who})"


def _goes_on(attempt: AttemptExplanation) -> str:
    count = attempt.told_tokens
    tokens = f"{count} {plural(count, 'token')} that the client has"
    if attempt.compared:
        return f"from the start: the {tokens} {plural(count, 'was', 'were')} made again and compared"
    return f"behind {tokens}; {plural(count, 'it is', 'they are')} in the prompt"


def _setting(attempt: AttemptExplanation) -> Iterator[tuple[str, str]]:
    """The inputs of the decision."""
    changed = ", ".join(f"{name} {value}" for name, value in attempt.settings_changed.items() if name != "policy")
    if attempt.settings is None:
        settings = f"revision {attempt.settings_revision}, which the log does not have"
        settings += ": costs are not taken apart" if attempt.policy in BLOCK_COST_POLICIES else ""
    else:
        settings = f"revision {attempt.settings_revision}: {changed or 'the defaults'}"
    known = ", ".join(f"{stream}:{seq}" for stream, seq in attempt.cursor.items())
    again = {
        "same": "decided again from the log, with the same result",
        "differs": "decided again from the log, with another result: "
        + ("; ".join(attempt.doubts) or "see `replay verify`"),
        "not_made": "as recorded; --whole folds the log and decides again",
    }
    if attempt.session_key:
        below = f", begun by session {attempt.session_parent}" if attempt.session_parent else ""
        yield "session", f"{attempt.session_key}{below}"
    if attempt.adapter:
        loads = f", which {attempt.worker_name} had to load first" if attempt.loads_adapter else ""
        yield "adapter", f"{attempt.adapter}{loads}"
    yield "prompt", size_text(attempt.prompt_tokens, attempt.prompt_blocks, attempt.block_size)
    inputs = POLICY_INPUTS.get(attempt.policy, "what this program does not know")
    yield "policy", f"{attempt.policy}, which looks at {inputs}"
    yield "settings", settings
    yield "replica", f"{attempt.replica_name} ({attempt.replica}), which had read the log up to {known}"
    yield "record", f"routing:{attempt.seq}, {again[attempt.again]}"


def size_text(tokens: int, blocks: int, block_size: int) -> str:
    """A prompt's size."""
    return f"{tokens} {plural(tokens, 'token')}, {blocks} {plural(blocks, 'block')} of {block_size}"


def candidates_table(rows: list[CandidateRow]) -> Table:
    """Each candidate with its cost taken apart, the chosen one marked."""
    drawn = any(row.probability is not None for row in rows)
    timed = any(row.timed is not None for row in rows)
    heads = (*(timed_heads(rows) if timed else _COSTS), *_WORK, *["chance"] * drawn)
    cells = (
        (
            *(timed_costs(row, rows) if timed else _costs(row)),
            *_work(row),
            *[f"{row.probability or 0:.1%}"] * drawn,
        )
        for row in rows
    )
    return _candidate_table(rows, heads, cells)


def _candidate_table(rows: list[CandidateRow], heads: tuple[str, ...], cells: Iterable[tuple[str, ...]]) -> Table:
    """A line for each candidate, by the name that people use, and by the id where two have one name."""
    names = [row.name for row in rows]
    if len(set(names)) < len(names):
        names = [f"{row.name} ({row.worker})" for row in rows]
    marked = [f"{'→' if row.chosen else ' '} {name}" for row, name in zip(rows, names, strict=True)]
    lines = [(name, *line) for name, line in zip(marked, cells, strict=True)]
    return Table(("  worker", *heads), lines, "<" + ">" * len(heads), indent="  ")


def _costs(row: CandidateRow) -> tuple[str, ...]:
    """The cost, and what it is the sum of, where it is one."""
    parts = (row.prefill_cost, row.decode_cost, row.request_cost)
    return f"{row.cost:.2f}", *(f"{part:.2f}" if any(parts) or not row.cost else NONE for part in parts)


def _work(row: CandidateRow) -> tuple[str, ...]:
    cached = str(row.overlap) if row.cache_known else "unknown"
    if row.overlap_device != row.overlap:
        cached += f", {row.overlap_device} on device"
    return (
        cached,
        str(row.pending),
        f"{row.to_prefill:.2f}",
        f"{row.active_blocks} in {row.active_requests}",
        str(row.waiting),
    )


def _known(row: CandidateRow) -> tuple[str, ...]:
    """The load in flight, and the age of the index's knowledge."""
    flying, known = row.in_flight, row.knowledge
    tokens = flying.prefill_tokens
    return (
        f"{flying.requests} with {flying.blocks} {plural(flying.blocks, 'block')}",
        # below 0 where ends of requests are not in the log yet, either
        UNKNOWN if flying.ahead is None else str(max(0, flying.ahead)),
        UNKNOWN if tokens is None else f"{number_text(tokens)} {plural(tokens, 'token')}",
        _ago(known.age_ms),
        NONE if not known.unseen else f"{known.unseen} of {known.unseen_ms} ms ago",
        _ago(known.load_age_ms),
    )


def _ago(age_ms: int | None) -> str:
    return UNKNOWN if age_ms is None else f"{number_text(age_ms)} ms ago"


def _then(attempt: AttemptExplanation) -> Iterator[tuple[str, str]]:
    """The outcome."""
    if attempt.ttft_ms is None:
        yield "then", "no first token is in the log"
    else:
        yield "then", f"{_first_token_text(attempt)}{_phases(attempt.phases)}{of_which(attempt)}"
        yield "cache", _cache(attempt)
    if attempt.outcome is not None:
        detail = f" ({attempt.detail})" if attempt.detail else ""
        tokens = f"{attempt.output_tokens} {plural(attempt.output_tokens, 'token')}"
        yield "ended", f"{attempt.outcome}{detail} after {tokens} and {attempt.duration_ms} ms"


def _first_token_text(attempt: AttemptExplanation) -> str:
    if attempt.pause_ms is None:
        return f"first token after {attempt.ttft_ms} ms"
    return f"the answer, begun after {attempt.first_token_ms} ms, goes on after a pause of {attempt.pause_ms} ms"


def _phases(phases: FirstTokenPhases | None) -> str:
    if phases is None:
        return ""
    parts = [f"{phases.before_ms} ms until this was decided"] if phases.before_ms else []
    if phases.behind_requests:
        requests = f"{phases.behind_requests} {plural(phases.behind_requests, 'request')}"
        tokens = f"{number_text(phases.behind_tokens)} {plural(phases.behind_tokens, 'token')}"
        beside = ", some of them beside it" if phases.overlapped else ""
        parts.append(f"{phases.behind_ms} ms behind {requests} being prefilled there ({tokens}){beside}")
    elif not phases.near_requests:
        parts.append("nothing was being prefilled there before it")
    if phases.near_requests:
        requests = f"{phases.near_requests} {plural(phases.near_requests, 'request')}"
        tokens = f"{number_text(phases.near_tokens)} {plural(phases.near_tokens, 'token')}"
        parts.append(f"{requests} ({tokens}) sent there within {phases.near_ms} ms, before it or behind it")
    return f": {', '.join(parts)}, {phases.rest_ms} ms its own"


def _cache(attempt: AttemptExplanation) -> str:
    real, reuse = attempt.real_cached_tokens, attempt.reuse
    prompt = f"{attempt.prompt_tokens} {plural(attempt.prompt_tokens, 'prompt token')}"
    if real is None:
        predicted = attempt.predicted_cached_tokens
        return f"the engine did not say how many of {prompt} came from its cache; {predicted} predicted"
    cached = f"{real} of {prompt} came from the cache"
    if reuse is None or reuse.verdict == "as_predicted":
        return f"{cached}, as predicted"
    where = f" ({reuse.stream}:{reuse.seq})" if reuse.stream is not None else ""
    return f"{cached}, predicted {attempt.predicted_cached_tokens}; {reuse.text}{where}"


def left_out(excluded: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The workers that were no candidates, by reason."""
    for reason, why in excluded.items():
        more = why["count"] - len(why["first"])
        named = ", ".join(why["first"]) + (f" and {more} more" if more > 0 else "")
        yield f"  left out: {why['count']} for {reason.replace('_', ' ')} ({named})"


_HEADS = ("time", "request", "worker", "replica", "prompt", "cached", "predicted", "ttft", "pause", "took", "outcome")


def requests_text(listed: RequestList, where: str) -> Text:
    """The table; `where` is what to add to a command for it to ask the same log."""
    if not listed.requests:
        yield "No request in the log matches."
        return
    yield Table(_HEADS, [_cells(each) for each in listed.requests], "<<<<>>>>>><")
    yield ""
    if listed.matched > len(listed.requests):
        yield f"{len(listed.requests):,} of {count_text(listed.matched, 'request')}."
    yield Command(f"contrail explain {listed.requests[0].request}{where}    explains its decision and outcome")


def _cells(each: RequestListEntry) -> tuple[str, ...]:
    attempt = f" #{each.attempt}" if each.attempt else ""
    return (
        each.time,
        f"{each.request}{attempt}",
        each.worker_name or NONE,
        each.replica_name,
        _number(each.prompt_tokens),
        _number(each.real_cached_tokens),
        _number(each.predicted_cached_tokens),
        _ms(each.ttft_ms),
        _ms(each.pause_ms),
        _ms(each.duration_ms),
        each.outcome.replace("_", " "),
    )


def _number(value: int | None) -> str:
    return NONE if value is None else number_text(value)


def _ms(value: int | None) -> str:
    return NONE if value is None or value < 0 else f"{number_text(value)} ms"
