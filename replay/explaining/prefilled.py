"""Where a prompt was computed: the decode worker's verdict and what came of it, in words that follow from the log."""

from __future__ import annotations

import msgspec

from core.events import RequestPrefilled, RequestRouted
from core.generation import PrefillReport
from core.subjects import ROUTING
from replay.explaining.ground import Ground
from replay.explaining.prefill_form import Hint, Prefilled
from replay.recording.participants import Participants
from replay.recording.recording import Recording
from replay.recording.request_history import RequestAttempt

CAME = {
    "pulled": "the blocks were pulled",
    "client_gone": "nobody waited any more",
    "deadline": "there was no answer in time",
    "prefill_failed": "the prefill worker gave up",
    "worker_gone": "the prefill worker went away",
    "mismatch": "the answer was not for this prompt, model or kind of block",
    "lease": "too little was left of the time that the blocks were held",
    "no_slot": "no slot came free in the engine while the blocks were held",
    "transfer_failed": "the transfer broke",
    "unconfirmed": "nobody confirmed that the blocks had been held until they came",
    "dead_letter": "the job was handed out too often",
    "draining": "the worker was leaving",
    "log_away": "the log was away, and without it nobody could take the job",
}
"""What became of a job, for people."""


def hint(event: RequestRouted, on: Ground, names: Participants) -> Hint | None:
    """The prefill worker that the decision preferred; None if none held more of the prompt than the chosen one."""
    if not event.prefer:
        return None
    name, chosen = names.worker(event.prefer), names.worker(event.worker)
    held = on.ranked[0].candidate.overlap[-1] * event.block_size
    text = (
        f"{name} held most of the prompt among prefill workers: {event.prefer_tokens} of {event.prompt_tokens} tokens, "
        f"and {chosen} {held or 'none'}"
    )
    return Hint(worker=event.prefer, name=name, tokens=event.prefer_tokens, text=text)


def report_of(recording: Recording, tried: RequestAttempt) -> PrefillReport | None:
    """What the worker said; None if no first token came, or nobody else could have computed the prompt."""
    found = None
    for _, message in (
        recording.said(ROUTING, tried.prefilled_seq, tried.prefilled_seq + 1) if tried.prefilled_seq else ()
    ):
        for event in message.events:
            if isinstance(event, RequestPrefilled) and (event.request, event.attempt) == (tried.request, tried.attempt):
                found = event.prefill
    return found


def prefilled(report: PrefillReport, worker: str, names: Participants) -> Prefilled:
    """The verdict of that worker, told."""
    here, there = names.worker(worker), names.worker(report.worker)
    said = msgspec.structs.asdict(report) | {"worker": report.worker or None, "name": there if report.worker else None}
    del said["job"]
    return Prefilled(**said, text=verdict_text(report, here), came=_came(report, here, there))


def verdict_text(report: PrefillReport, here: str) -> str:
    """Why the prompt was computed where it was, with all that decided it."""
    lacked = f"{here}'s cache lacked {report.uncached_tokens} tokens"
    more = f"{lacked}, more than remote_prefill_min_tokens {report.min_tokens}"
    able = f"{report.workers} prefill {'worker' if report.workers == 1 else 'workers'} could take it"
    waited = f"{report.queued} {'job' if report.queued == 1 else 'jobs'} waited"
    found = {
        "long": f"{more}; {able}, and {waited}, fewer than prefill_queue_max {report.queue_max}: it asked others",
        "short": f"{lacked}, not more than remote_prefill_min_tokens {report.min_tokens}: computed there",
        "no_prefill_worker": f"{more}, but no prefill worker could take it: computed there",
        "queue_full": f"{more}, but {waited}, and prefill_queue_max is {report.queue_max}: computed there",
        "log_away": f"{more}, and {able}, but the log acknowledged nothing: computed there",
        "busy": f"{more}, but the same blocks were on their way to it for another request: computed there",
    }
    return found.get(report.reason, f"{more}; {able}, and {waited}: {report.reason.replace('_', ' ')}")


def _came(report: PrefillReport, here: str, there: str) -> str:
    if not report.outcome:
        return ""
    if report.outcome == "pulled":
        return (
            f"computed by {there}: {report.pulled_tokens} tokens that {here} did not compute, after "
            f"{report.wait_ms} ms of waiting and {report.pull_ms} ms of pulling"
        )
    why = outcome_text(report.outcome, report.detail)
    return f"computed by {here} after all, which had waited {report.wait_ms} ms: {why}"


def outcome_text(outcome: str, detail: str = "") -> str:
    """What became of a job; the detail stands behind it if it says more."""
    text = CAME.get(outcome, outcome.replace("_", " "))
    return text if detail in text else f"{text} ({detail})"
