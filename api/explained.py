"""An explanation as a page of text: what was known, why that worker, what came of it."""

from __future__ import annotations

from typing import Any

from replay.explain import Attempt, Explanation, Row

_HEADS = (
    "worker",
    "cost",
    "= prefill",
    "+ decode",
    "+ requests",
    "cached",
    "computing",
    "to prefill",
    "active",
    "waiting",
)


def explained(explanation: Explanation) -> str:
    """The page; blocks and costs are in blocks."""
    lines = [f"request {explanation.request}, model {explanation.model}"]
    for attempt in explanation.attempts:
        lines += ["", *_attempt(attempt)]
    for rejection in explanation.rejections:
        reason = rejection.reason.replace("_", " ")
        lines += ["", f"{rejection.time}  rejected with {rejection.status}: {reason}", *_left_out(rejection.excluded)]
    return "\n".join(lines)


def _left_out(excluded: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"  left out: {why['count']} for {reason.replace('_', ' ')} ({', '.join(why['first'])})"
        for reason, why in excluded.items()
    ]


def _attempt(attempt: Attempt) -> list[str]:
    known = ", ".join(f"{stream}:{seq}" for stream, seq in attempt.cursor.items())
    lines = [
        f"{attempt.time}  attempt {attempt.attempt}: {attempt.worker_name} ({attempt.worker})",
        f"  prompt   {attempt.prompt_tokens} tokens, {attempt.prompt_blocks} blocks of {attempt.block_size}",
        f"  replica  {attempt.replica_name} ({attempt.replica})",
        f"  policy   {attempt.policy}, settings revision {attempt.settings_revision}",
        f"  known    the log up to {known}",
        f"  why      {attempt.why}",
        "",
        *_table(attempt.candidates),
    ]
    if attempt.told_tokens:
        lines.insert(1, f"  goes on  behind {attempt.told_tokens} tokens that the client has; they are in the prompt")
    more = attempt.candidates_total - len(attempt.candidates)
    if more > 0:
        lines.append(f"  … and {more} dearer ones, not recorded")
    lines += _left_out(attempt.excluded)
    for worker, reasons in attempt.local.items():
        lines.append(f"  this replica alone knew of {worker}: {', '.join(reasons).replace('_', ' ')}")
    return [*lines, "", *_outcome(attempt)]


def _table(rows: list[Row]) -> list[str]:
    cells = [_HEADS, *map(_cells, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(_HEADS))]
    lines = []
    for number, row in enumerate(cells):
        mark = "→ " if number and rows[number - 1].chosen else "  "
        first = row[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append(f"  {mark}{first}  {'  '.join(rest)}")
    return lines


def _cells(row: Row) -> tuple[str, ...]:
    cached = str(row.overlap) if row.cache_known else "unknown"
    costs = (row.cost, row.prefill_cost, row.decode_cost, row.request_cost)
    return (
        row.name,
        *(f"{cost:.2f}" for cost in costs),
        cached,
        str(row.pending),
        f"{row.to_prefill:.2f}",
        f"{row.active_blocks} in {row.active_requests}",
        str(row.waiting),
    )


def _outcome(attempt: Attempt) -> list[str]:
    if attempt.real_cached_tokens is None:
        came = "no first token is in the log"
    else:
        predicted, real = attempt.predicted_cached_tokens, attempt.real_cached_tokens
        verdict = "as predicted" if predicted == real else f"predicted {predicted}"
        came = f"first token after {attempt.ttft_ms} ms; {real} prompt tokens came from the cache, {verdict}"
    lines = [f"  then     {came}"]
    if attempt.outcome is not None:
        detail = f" ({attempt.detail})" if attempt.detail else ""
        ended = f"{attempt.outcome}{detail} after {attempt.output_tokens} tokens and {attempt.duration_ms} ms"
        lines.append(f"  ended    {ended}")
    return lines
