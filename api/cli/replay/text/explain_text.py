"""An explanation as a page of text: what was known, why that worker, what it would have taken, what came of it; and a
list of requests as a table, one attempt a line.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from api.cli.output import number_text, text_table
from api.cli.replay.text.estimate_text import estimate_lines, hold_lines, timed_costs, timed_heads
from api.cli.replay.text.prefill_text import of_which, prefill_lines
from projections.policy.cost import BLOCK_COST_POLICIES
from replay.explain.explain import UNREAD
from replay.explain.explanation import AttemptExplanation, CandidateRow, Explanation, FirstTokenPhases, QueueWait
from replay.explain.request_list import RequestListEntry
from replay.explain.sentences import POLICY_INPUTS

_COSTS = ("cost", "= prefill", "+ decode", "+ requests")
_WORK = (
    "cached",
    "computing",
    "to prefill",
    "active",
    "waiting",
)
_KNOWN = (
    "worker",
    "in flight",
    "of these ours alone",
    "to prefill",
    "cache events until",
    "not seen yet",
    "load report",
)
UNKNOWN = "?"
WAITED_FOR = {
    "full": "workers had all that they may have",
    "overloaded": "too much waited in the workers' engines",
    "behind": "others came first",
    "prefill": "its worker computed other prompts",
}
"""What is behind the words of `core.events.routing.WAITS_FOR`."""


def explain_text(explanation: Explanation) -> str:
    """The page; blocks and costs are in blocks, under `time` and `session` costs in milliseconds."""
    lines = [f"request {explanation.request}, model {explanation.model}"]
    if explanation.uses > 1:
        lines.append(f"{explanation.uses} requests had this id; this is the last one that was routed")
    moved = [attempt for attempt in explanation.attempts if attempt.told_tokens]
    if len(moved) > 1:
        workers = [attempt.worker_name for attempt in explanation.attempts]
        lines.append(f"the answer moved {len(moved)} times: {' → '.join(workers)}")
    for attempt in explanation.attempts:
        lines += ["", *_attempt(attempt)]
    if explanation.unread:
        lines += ["", *explanation.unread]
    for rejection in explanation.rejections:
        reason = rejection.reason.replace("_", " ") if rejection.reason != UNREAD else "why, this program cannot read"
        if rejection.detail:
            reason = f"{reason} ({rejection.detail})"
        lines += ["", f"{rejection.time}  rejected with {rejection.status}: {reason}", *left_out(rejection.excluded)]
        if rejection.queued is not None:
            lines.append(f"  waited   {_waited(rejection.queued)}")
    return "\n".join(lines)


def _attempt(attempt: AttemptExplanation) -> list[str]:
    lines = [f"{attempt.decided}  attempt {attempt.attempt}: {attempt.worker_name} ({attempt.worker})"]
    if attempt.queued is not None:
        lines.append(f"  waited   {_waited(attempt.queued)}")
    lines += titled(hold_lines(attempt))
    if attempt.told_tokens:
        lines.append(f"  goes on  {_goes_on(attempt)}")
    lines.append(f"  why      {attempt.why}")
    if attempt.runner_up is not None:
        lines.append(f"  else     {attempt.runner_up.text}")
    lines += titled(chain(estimate_lines(attempt.estimates), prefill_lines(attempt), _then(attempt), _setting(attempt)))
    lines += ["", *candidates_table(attempt.candidates)]
    more = attempt.candidates_total - len(attempt.candidates)
    if more > 0:
        lines.append(f"  … and {more} dearer ones, not recorded; --whole folds the log and shows them")
    lines += left_out(attempt.excluded)
    for worker, reasons in attempt.local.items():
        lines.append(f"  this replica alone knew of {worker}: {', '.join(reasons).replace('_', ' ')}")
    return [*lines, "", *_known_table(attempt)]


def titled(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Each with its title in front."""
    return [f"  {title:<8} {text}" for title, text in lines]


def _waited(queued: QueueWait) -> str:
    took = "for a time that the log does not tell" if queued.waited_ms is None else f"{queued.waited_ms} ms"
    why = WAITED_FOR.get(queued.why, queued.why)
    who = f"priority {queued.priority}" + (f", tenant {queued.tenant}" if queued.tenant else "")
    return f"{took}, since {queued.time}: {why}; {queued.depth} waited already ({who})"


def _goes_on(attempt: AttemptExplanation) -> str:
    told = _count(attempt.told_tokens, "token")
    if attempt.compared:
        return f"from the start: the {told} that the client has were made again and compared"
    return f"behind {told} that the client has; they are in the prompt"


def _setting(attempt: AttemptExplanation) -> list[tuple[str, str]]:
    """What it was decided on."""
    changed = ", ".join(f"{name} {value}" for name, value in attempt.settings_changed.items() if name != "policy")
    policy = f"{attempt.policy}, which looks at {POLICY_INPUTS.get(attempt.policy, 'what this program does not know')}"
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
    below = f", begun by session {attempt.session_parent}" if attempt.session_parent else ""
    return [
        *([("session", f"{attempt.session_key}{below}")] if attempt.session_key else ()),
        ("prompt", f"{attempt.prompt_tokens} tokens, {attempt.prompt_blocks} blocks of {attempt.block_size}"),
        ("policy", policy),
        ("settings", settings),
        ("replica", f"{attempt.replica_name} ({attempt.replica}), which had read the log up to {known}"),
        ("record", f"routing:{attempt.seq}, {again[attempt.again]}"),
    ]


def candidates_table(rows: list[CandidateRow]) -> list[str]:
    """Each candidate with its cost taken apart, the chosen one marked."""
    drawn = any(row.probability is not None for row in rows)
    timed = any(row.timed is not None for row in rows)
    heads = ("worker", *(timed_heads(rows) if timed else _COSTS), *_WORK, *["chance"] * drawn)
    cells = [
        (
            name,
            *(timed_costs(row, rows) if timed else _costs(row)),
            *_work(row),
            *[f"{row.probability or 0:.1%}"] * drawn,
        )
        for name, row in zip(_names(rows), rows, strict=True)
    ]
    return _marked(rows, text_table(heads, cells, "<" + ">" * (len(heads) - 1)))


def _names(rows: list[CandidateRow]) -> list[str]:
    """As people call them; with the id where two are called the same."""
    names = [row.name for row in rows]
    return names if len(set(names)) == len(names) else [f"{row.name} ({row.worker})" for row in rows]


def _costs(row: CandidateRow) -> tuple[str, ...]:
    """The cost, and what it is the sum of, where it is one."""
    parts = (row.prefill_cost, row.decode_cost, row.request_cost)
    return f"{row.cost:.2f}", *(f"{part:.2f}" if any(parts) or not row.cost else "-" for part in parts)


def _work(row: CandidateRow) -> tuple[str, ...]:
    cached = str(row.overlap) if row.cache_known else "unknown"
    return (
        cached,
        str(row.pending),
        f"{row.to_prefill:.2f}",
        f"{row.active_blocks} in {row.active_requests}",
        str(row.waiting),
    )


def _known_table(attempt: AttemptExplanation) -> list[str]:
    """What was in flight, and how old was what the index knew."""
    rows = attempt.candidates
    cells = [(name, *_known(row)) for name, row in zip(_names(rows), rows, strict=True)]
    return _marked(rows, text_table(_KNOWN, cells, "<" + ">" * (len(_KNOWN) - 1)))


def _known(row: CandidateRow) -> tuple[str, ...]:
    flying, known = row.in_flight, row.knowledge
    unseen = "-" if not known.unseen else f"{known.unseen} of {known.unseen_ms} ms ago"
    return (
        f"{flying.requests} with {flying.blocks} blocks",
        UNKNOWN if flying.ahead is None else str(flying.ahead),
        UNKNOWN if flying.prefill_tokens is None else f"{number_text(flying.prefill_tokens)} tokens",
        _ago(known.age_ms),
        unseen,
        _ago(known.load_age_ms),
    )


def _ago(age_ms: int | None) -> str:
    return UNKNOWN if age_ms is None else f"{number_text(age_ms)} ms ago"


def _marked(rows: list[CandidateRow], lines: list[str]) -> list[str]:
    marks = ["  ", *("→ " if row.chosen else "  " for row in rows)]
    return [f"  {mark}{line}" for mark, line in zip(marks, lines, strict=True)]


def _then(attempt: AttemptExplanation) -> list[tuple[str, str]]:
    """What came of it."""
    if attempt.real_cached_tokens is None:
        lines = [("then", "no first token is in the log")]
    else:
        lines = [
            ("then", f"first token after {attempt.ttft_ms} ms{_phases(attempt.phases)}{of_which(attempt)}"),
            ("cache", _cache(attempt)),
        ]
    if attempt.outcome is not None:
        detail = f" ({attempt.detail})" if attempt.detail else ""
        ended = f"{attempt.outcome}{detail} after {attempt.output_tokens} tokens and {attempt.duration_ms} ms"
        lines.append(("ended", ended))
    return lines


def _phases(phases: FirstTokenPhases | None) -> str:
    if phases is None:
        return ""
    parts = [f"{phases.before_ms} ms until this was decided"] if phases.before_ms else []
    if phases.behind_requests:
        requests, tokens = _count(phases.behind_requests, "request"), number_text(phases.behind_tokens)
        there = f"{requests} being prefilled there ({tokens} tokens)"
        beside = ", some of them beside it" if phases.overlapped else ""
        parts.append(f"{phases.behind_ms} ms behind {there}{beside}")
    else:
        parts.append("nothing was being prefilled there before it")
    return f": {', '.join(parts)}, {phases.rest_ms} ms its own"


def _cache(attempt: AttemptExplanation) -> str:
    real, reuse = attempt.real_cached_tokens, attempt.reuse
    said = f"{real} of {attempt.prompt_tokens} prompt tokens came from the cache"
    if reuse is None or reuse.verdict == "as_predicted":
        return f"{said}, as predicted"
    where = f" ({reuse.stream}:{reuse.seq})" if reuse.stream is not None else ""
    return f"{said}, predicted {attempt.predicted_cached_tokens}; {reuse.text}{where}"


def left_out(excluded: dict[str, dict[str, Any]]) -> list[str]:
    """Who was no candidate, and why."""
    lines = []
    for reason, why in excluded.items():
        more = why["count"] - len(why["first"])
        named = ", ".join(why["first"]) + (f" and {more} more" if more > 0 else "")
        lines.append(f"  left out: {why['count']} for {reason.replace('_', ' ')} ({named})")
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


_HEADS = ("time", "request", "worker", "replica", "prompt", "cached", "predicted", "ttft", "took", "outcome")
NONE = "-"


def requests_text(listed: list[RequestListEntry], where: str) -> str:
    """The table; `where` is what to add to a command for it to ask the same log."""
    if not listed:
        return "no request in the log is like that"
    lines = text_table(_HEADS, [_cells(each) for each in listed], "<<<<>>>>><")
    return "\n".join([*lines, "", f"contrail explain {listed[0].request}{where}    says why, and what came of it"])


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
        _ms(each.duration_ms),
        each.outcome.replace("_", " "),
    )


def _number(value: int | None) -> str:
    return NONE if value is None else number_text(value)


def _ms(value: int | None) -> str:
    return NONE if value is None or value < 0 else f"{number_text(value)} ms"
