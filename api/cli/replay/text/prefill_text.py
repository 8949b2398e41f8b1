"""The place where a prompt was computed, as lines of text: the decision, the job by its events, and the outcome."""

from __future__ import annotations

from collections.abc import Iterator

from api.cli.quantities import bytes_text, plural
from replay.explain.explanation import AttemptExplanation, PrefillJobAttempt, PrefillJobTrace
from replay.explain.prefill_trace import outcome_text

Line = tuple[str, str]
"""A title, which may be empty, and what stands behind it."""


def prefill_lines(attempt: AttemptExplanation) -> Iterator[Line]:
    """None where only this worker could have computed the prompt."""
    if attempt.fetch is not None:
        yield "fetch", attempt.fetch.text
    if attempt.prefill is not None:
        yield "prefill", attempt.prefill.text
    if attempt.hint is not None:
        yield "prefer", attempt.hint.text
    elif attempt.job is not None:
        yield "prefer", f"no prefill worker held more of the prompt than {attempt.worker_name}"
    if attempt.job is not None:
        yield from _job(attempt.job)
    has_end = attempt.job is not None and attempt.job.outcome in {"pulled", "cancelled"}
    if attempt.prefill is not None and attempt.prefill.came and not has_end:
        yield "", attempt.prefill.came


def of_which(attempt: AttemptExplanation) -> str:
    """The part of the time to the first token that a remote prefill took; empty if none."""
    it = attempt.prefill
    if it is None or not it.outcome:
        return ""
    if it.outcome == "pulled":
        return f", of which {it.wait_ms} ms waiting for {it.name} and {it.pull_ms} ms pulling"
    return f", of which {it.wait_ms} ms waiting in vain for another to compute the prompt"


def _job(job: PrefillJobTrace) -> Iterator[Line]:
    if job.asked_seq is None:
        yield "job", job.job
    else:
        tokens = f"{job.prompt_tokens} {plural(job.prompt_tokens, 'token')}"
        prompt = f"{tokens}, of which it had {job.cached_tokens}"
        asked = f"asked for by {job.requester_name} at jobs:{job.asked_seq} ({job.asked})"
        yield "job", f"{job.job}, {asked}: {prompt}; it waits {job.wait_max_ms} ms at most"
    for each in job.tries:
        yield from _try(each)
    yield from _end(job)
    if job.lacks:
        yield "", job.lacks


def _try(it: PrefillJobAttempt) -> Iterator[Line]:
    called = f"{it.name} ({it.worker})"
    if it.started_seq is not None:
        yield (
            "",
            f"{_after(it.after_ms)} taken by {called}, attempt {it.attempt}, {_delivered(it)} (jobs:{it.started_seq})",
        )
    where = f"(jobs:{it.ended_seq})"
    match it.outcome:
        case "completed":
            held = f"{it.blocks} {plural(it.blocks, 'block')} held for {it.keep_ms} ms"
            unused = "" if it.used else "; not used"
            cached = f"{it.cached_tokens} {plural(it.cached_tokens, 'token')} from its cache"
            computed = f"computed in {it.compute_ms} ms, {cached}; {held}{unused}"
            yield "", f"{_after(it.ended_after_ms)} {computed} {where}"
        case "failed":
            yield "", f"{_after(it.ended_after_ms)} {it.name} failed: {it.reason} {where}"
        case "dead":
            yield "", f"{_after(it.ended_after_ms)} {it.name} gave it up, to be handed out no more: {it.reason} {where}"
        case _:
            yield "", f"        {it.name} did not answer{f', it {_gone(it.reason)}' if it.reason else ''}"


def _delivered(it: PrefillJobAttempt) -> str:
    if not it.delivery:
        return "offered to it directly"
    return (
        "handed out by the queue" if it.delivery == 1 else f"handed out by the queue for the {_nth(it.delivery)} time"
    )


def _end(job: PrefillJobTrace) -> Iterator[Line]:
    where = f"(jobs:{job.ended_seq})"
    match job.outcome:
        case "pulled":
            blocks = f"{job.blocks} {plural(job.blocks, 'block')}, {bytes_text(job.bytes)}"
            what = f"{blocks}, from {job.name} by {job.transport or 'unknown means'}"
            times = f"{job.wait_ms} ms until the answer, {job.pull_ms} ms from there to the first token"
            yield "", f"{_after(job.ended_after_ms)} pulled: {what}; {times} {where}"
        case "cancelled":
            why = outcome_text(job.reason, job.detail)
            then = "" if job.reason == "client_gone" else f"; {job.requester_name} computed the prompt itself"
            yield "", f"{_after(job.ended_after_ms)} given up after {job.wait_ms} ms: {why}{then} {where}"
        case "requester_ended":
            yield "", f"{_after(job.ended_after_ms)} {job.requester_name} {_gone(job.reason)} {where}"


def _gone(reason: str) -> str:
    how, _, why = reason.partition(": ")
    return f"{'was lost' if how == 'lost' else how} ({why})" if why else reason


def _after(after_ms: int | None) -> str:
    return f"{'' if after_ms is None else f'{after_ms:+d} ms':>8}"


def _nth(number: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if 10 < number % 100 < 14 else ends.get(number % 10, 'th')}"
