"""What `contrail replay verify` found of verdicts on where to compute prompts, and of prefill jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from core.event_json import time_text
from replay.verify.prefill_decisions import PREFILL_TERMS, PrefillDifference, PrefillResult

SHOWN = 10
"""In text; JSON has all that is kept."""
NOT_JUDGED = {"version": "given by another version of the program's rules"}


def prefill_answer(found: PrefillResult) -> str:
    """The sentence for a record in which these alone differ; empty if they do not."""
    if found.different:
        verdicts = f"{found.different:,} of {found.total:,} verdicts on where to compute a prompt"
        return f"Every decision follows from the log, but {verdicts} do not follow from what they rested on."
    if found.jobs.different:
        return f"Every decision follows from the log, but {found.jobs.different:,} times a prefill job was not as told."
    return ""


def prefill_differences(found: PrefillResult) -> Iterator[str]:
    """Each with both sides."""
    for it in found.differences[:SHOWN]:
        about = f"{it.request} attempt {it.attempt}, " if it.request else ""
        about += f"job {it.job}, " if it.job else ""
        yield f"  {about}said by {it.source_name} at {it.stream}:{it.seq} ({time_text(it.time_ms)})"
        yield f"    differs: {PREFILL_TERMS.get(it.term, it.term)} ({it.term})"
        yield f"      recorded {_value(it.recorded)}, recomputed {_value(it.recomputed)}"
    more = found.differ - SHOWN
    if more > 0:
        yield f"  … and {more:,} more of prefills"


def prefill_counts(found: PrefillResult) -> Iterator[str]:
    """Nothing where no worker could have had a prompt computed elsewhere."""
    if found.total:
        told = f"{found.verified:,} verdicts verified, {found.remote:,} of {found.total:,} asked others"
        told += f", {found.different:,} different" if found.different else ""
        yield f"  prefills    {told}"
        for reason, count in found.not_judged.items():
            yield f"  not judged  {count:,} verdicts: {NOT_JUDGED.get(reason, reason)}"
    jobs = found.jobs
    if jobs.asked:
        ends = [
            f"{jobs.pulled:,} pulled",
            *(f"{count:,} {reason.replace('_', ' ')}" for reason, count in jobs.cancelled.items()),
            *([f"{jobs.requester_ended:,} ended with their worker"] * bool(jobs.requester_ended)),
            *([f"{jobs.open:,} open"] * bool(jobs.open)),
            *([f"{jobs.different:,} times not as told"] * bool(jobs.different)),
        ]
        yield f"  jobs        {jobs.asked:,}: {', '.join(ends)}"
    if jobs.not_judged or jobs.untold:
        yield f"  not judged  {jobs.not_judged + jobs.untold:,} jobs or more: their messages are not all here"


def prefills_json(found: PrefillResult) -> dict[str, Any]:
    """Stable snake_case keys."""
    said: dict[str, Any] = msgspec.to_builtins(found)
    said["differences"] = [_difference_json(it) for it in found.differences]
    return said


def _difference_json(it: PrefillDifference) -> dict[str, Any]:
    said: dict[str, Any] = msgspec.to_builtins(it)
    return said | {"time": time_text(said.pop("time_ms")), "request": it.request or None, "job": it.job or None}


def _value(value: Any) -> str:
    return value or "nothing" if isinstance(value, str) else msgspec.json.encode(value).decode()
