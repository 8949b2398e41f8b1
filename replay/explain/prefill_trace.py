"""Prefill trace of a request: the decode worker's decision on where to compute the prompt, and the job's events.

The job is searched in the jobs stream near its request. Only messages that name the job are decoded, so a search costs
little more than reading the messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec import UnsetType

from core.codec import decode_message
from core.errors import Corrupt
from core.event_json import time_text
from core.events import Event, RequestPrefilled, RequestRouted, UnknownEvent, WorkerLeft, WorkerLost
from core.events.jobs import (
    PrefillCancelled,
    PrefillCompleted,
    PrefillFailed,
    PrefillPulled,
    PrefillRequested,
    PrefillStarted,
)
from core.generation import PrefillReport
from core.ids import LOST_SUFFIX
from core.subjects import JOBS, ROUTING, owner
from replay.explain.decision_inputs import DecisionInputs
from replay.explain.explanation import FetchExplanation, PrefillHint, PrefillJobAttempt, PrefillJobTrace, PrefillOutcome
from replay.recording.participants import Participants
from replay.recording.recording import Recording
from replay.recording.request_history import RequestAttempt
from streams.log import Record

OUTCOME_TEXTS = {
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
"""The outcomes of a job as phrases."""


def prefill_hint(event: RequestRouted, on: DecisionInputs, names: Participants) -> PrefillHint | None:
    """The prefill worker that the decision preferred; None if none held more of the prompt than the chosen one."""
    if not event.prefer:
        return None
    name, chosen = names.worker(event.prefer), names.worker(event.worker)
    held = on.ranked[0].candidate.overlap[-1] * event.block_size
    text = (
        f"{name} held most of the prompt among prefill workers: {event.prefer_tokens} of {event.prompt_tokens} tokens, "
        f"and {chosen} {held or 'none'}"
    )
    return PrefillHint(worker=event.prefer, name=name, tokens=event.prefer_tokens, text=text)


def explain_fetch(event: RequestRouted, names: Participants) -> FetchExplanation | None:
    """The fetch that the decision chose; None if it chose none."""
    fetch = event.fetch
    if isinstance(fetch, UnsetType) or not fetch.source:
        return None
    name, expected_ms = names.worker(fetch.source), fetch.us / 1000
    text = (
        f"{fetch.tokens} of {event.prompt_tokens} prompt tokens were to come from the host of {name}, in "
        f"{expected_ms:g} ms; the blocks to prefill contain that time"
    )
    return FetchExplanation(worker=fetch.source, name=name, tokens=fetch.tokens, expected_ms=expected_ms, text=text)


def prefill_report(recording: Recording, tried: RequestAttempt) -> PrefillReport | None:
    """The worker's report; None if no first token came, or no prefill worker could have computed the prompt."""
    events = recording.events([tried.prefilled_at]) if tried.prefilled_at else ()
    return next((event.prefill for _, event in events if isinstance(event, RequestPrefilled)), None)


def prefill_outcome(report: PrefillReport, worker: str, names: Participants) -> PrefillOutcome:
    """The decision of that worker, with its reason and outcome in words."""
    here, there = names.worker(worker), names.worker(report.worker)
    fields = msgspec.structs.asdict(report) | {
        "worker": report.worker or None,
        "name": there if report.worker else None,
    }
    del fields["job"], fields["rules"], fields["remote_cached_tokens"], fields["compute_ms"]
    return PrefillOutcome(**fields, text=verdict_text(report, here), came=_outcome_sentence(report, here, there))


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


def _outcome_sentence(report: PrefillReport, here: str, there: str) -> str:
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
    """The outcome of a job as a phrase, with the detail if it adds something."""
    text = OUTCOME_TEXTS.get(outcome, outcome.replace("_", " "))
    return text if detail in text else f"{text} ({detail})"


EARLY_MS = 1000
"""A job is requested behind the decision, and the time of the decision is known to some milliseconds."""
LATE_MS = 2000
"""Events of a job behind its end, and ends of its workers, are searched for so long."""
SEARCH_MAX = 65_536
"""Messages read: some 100 ms."""
WORKER_END_MARK = b"WorkerL"
"""Stands in every message that says that a worker left or was lost."""


class _JobEvent(NamedTuple):
    seq: int
    time_ms: int
    source: str
    event: Event | UnknownEvent


def trace_prefill_job(
    recording: Recording, tried: RequestAttempt, report: PrefillReport | None, decided_ms: int
) -> PrefillJobTrace | None:
    """The job that the attempt's worker asked for; None if it asked for none, as far as the log tells."""
    if report is not None and not report.job:
        return None
    if report is None and tried.prefilled_seq:
        return None  # its worker had no prefill worker
    known = "" if report is None else report.job
    if JOBS not in recording.streams:
        return _unknown_job(known, tried, recording.names, "the log has no jobs stream") if known else None
    search = _Search(recording, tried, known)
    search.run(decided_ms)
    if search.job is not None:
        return search.job
    return _unknown_job(known, tried, recording.names, search.why_not()) if known else None


def _unknown_job(job: str, tried: RequestAttempt, names: Participants, missing: str) -> PrefillJobTrace:
    return PrefillJobTrace(job=job, requester=tried.worker, requester_name=names.worker(tried.worker), lacks=missing)


class _Search:
    """One pass over the stretch of the jobs stream in which the job's events stand."""

    def __init__(self, recording: Recording, tried: RequestAttempt, job: str) -> None:
        self.job: PrefillJobTrace | None = None
        self._recording = recording
        self._names = recording.names
        self._tried = tried
        self._needle = job.encode()
        """The id of the job as bytes, once it is known; the job's messages hold it."""
        self._known = job
        self._asked_ms: int | None = None
        self._tries: dict[tuple[str, int], PrefillJobAttempt] = {}
        self._start = 1
        self._over_ms: int | None = None

    def __repr__(self) -> str:
        return f"<Search for {self._known or 'a job'} of {self._tried.request}>"

    def run(self, decided_ms: int) -> None:
        """The job is found, with its events near enough."""
        archive, tried = self._recording.archive, self._tried
        start = self._start = archive.seek(JOBS, decided_ms - EARLY_MS)
        last_ms = max(decided_ms, tried.prefilled_ms, self._ended_ms()) + LATE_MS
        for record in archive.read(JOBS, start, start + SEARCH_MAX):
            if record.time_ms > last_ms and self._is_enough(record.time_ms):
                break
            for found in self._events_of(record):
                self._note(found)
        if self.job is not None:
            self.job.tries = sorted(self._tries.values(), key=_place)
            self._note_missing(self.job)

    def why_not(self) -> str:
        """Why nothing of it was found."""
        begin = self._recording.archive.span(JOBS).begin
        if begin > 1 and self._start <= begin:
            return f"the jobs stream does not reach back to it: it begins at jobs:{begin}"
        return "its events are not in the jobs stream near the request"

    def _is_enough(self, time_ms: int) -> bool:
        """A job that is open is followed on: that its worker was lost is known only when its lease runs out."""
        return self.job is None or (self._over_ms is not None and time_ms > self._over_ms + LATE_MS)

    def _ended_ms(self) -> int:
        if not self._tried.ended_seq:
            return 0
        record = self._recording.archive.at(ROUTING, self._tried.ended_seq)
        return record.time_ms if record is not None else 0

    def _events_of(self, record: Record) -> Iterator[_JobEvent]:
        """The message's events about the job, or the end of a worker that had it."""
        payload, source = record.payload, owner(record.subject)
        if not self._needle:
            matches = source == self._tried.worker and self._tried.request.encode() in payload
        else:
            matches = self._needle in payload or (WORKER_END_MARK in payload and self._concerns(source))
        if not matches:
            return
        try:
            message = decode_message(payload)
        except Corrupt:
            return
        if message.source in {source, source + LOST_SUFFIX}:
            for event in message.events:
                yield _JobEvent(record.seq, record.time_ms, message.source, event)

    def _concerns(self, worker: str) -> bool:
        return worker == self._tried.worker or any(worker == each for each, _ in self._tries)

    def _note(self, found: _JobEvent) -> None:
        event = found.event
        if isinstance(event, WorkerLeft | WorkerLost):
            self._gone(found, event.reason)
        elif isinstance(event, PrefillRequested):
            self._requested(found, event)
        elif getattr(event, "job", None) == self._known and self._known:
            match event:
                case PrefillStarted():
                    self._started(found, event)
                case PrefillCompleted():
                    self._completed(found, event)
                case PrefillFailed():
                    self._failed(found, event)
                case PrefillPulled():
                    self._pulled(found, event)
                case PrefillCancelled():
                    self._cancelled(found, event)

    # --- events ------------------------------------------------------------------------------------------------

    def _requested(self, found: _JobEvent, event: PrefillRequested) -> None:
        ours = event.job == self._known if self._known else event.request == self._tried.request
        if not ours:
            return
        self._known, self._needle, self._asked_ms = event.job, event.job.encode(), found.time_ms
        job = self._the_job()
        job.requester, job.requester_name = found.source, self._names.worker(found.source)
        job.asked_seq, job.asked = found.seq, time_text(found.time_ms)
        job.prompt_tokens, job.cached_tokens, job.wait_max_ms = event.prompt_tokens, event.cached_tokens, event.wait_ms

    def _started(self, found: _JobEvent, event: PrefillStarted) -> None:
        it = self._try(found.source, event.attempt)
        it.started_seq, it.started, it.after_ms = found.seq, time_text(found.time_ms), self._after(found)
        it.delivery = event.delivery

    def _completed(self, found: _JobEvent, event: PrefillCompleted) -> None:
        it = self._answered(found, event.attempt, "completed")
        it.compute_ms, it.cached_tokens, it.keep_ms = event.compute_ms, event.cached_tokens, event.keep_ms
        it.blocks = max(map(len, event.blocks.ids), default=0)

    def _failed(self, found: _JobEvent, event: PrefillFailed) -> None:
        self._answered(found, event.attempt, "dead" if event.dead else "failed").reason = event.reason

    def _answered(self, found: _JobEvent, attempt: int, outcome: str) -> PrefillJobAttempt:
        it = self._try(found.source, attempt)
        it.outcome, it.reason = outcome, ""
        it.ended_seq, it.ended, it.ended_after_ms = found.seq, time_text(found.time_ms), self._after(found)
        return it

    def _pulled(self, found: _JobEvent, event: PrefillPulled) -> None:
        job = self._over(found, "pulled", "")
        job.worker, job.name = event.worker, self._names.worker(event.worker)
        job.blocks, job.bytes, job.tokens, job.transport = event.blocks, event.bytes, event.tokens, event.transport
        job.wait_ms, job.pull_ms = event.wait_ms, event.pull_ms

    def _cancelled(self, found: _JobEvent, event: PrefillCancelled) -> None:
        job = self._over(found, "cancelled", event.reason)
        job.detail, job.wait_ms = event.detail, event.wait_ms

    def _gone(self, found: _JobEvent, reason: str) -> None:
        gone = found.source.removesuffix(LOST_SUFFIX)
        how = f"{'lost' if isinstance(found.event, WorkerLost) else 'left'}: {reason}"
        if self.job is not None and gone == self.job.requester and self.job.outcome == "open":
            self._over(found, "requester_ended", how)
        for (worker, _), it in self._tries.items():
            if worker == gone and it.outcome == "unanswered":
                it.reason = how

    # -----------------------------------------------------------------------------------------------------------

    def _the_job(self) -> PrefillJobTrace:
        if self.job is None:
            self.job = _unknown_job(self._known, self._tried, self._names, "")
        return self.job

    def _over(self, found: _JobEvent, outcome: str, reason: str) -> PrefillJobTrace:
        job = self._the_job()
        job.outcome, job.reason, self._over_ms = outcome, reason, found.time_ms
        job.ended_seq, job.ended, job.ended_after_ms = found.seq, time_text(found.time_ms), self._after(found)
        return job

    def _try(self, worker: str, attempt: int) -> PrefillJobAttempt:
        self._the_job()
        key = (worker, attempt)
        if key not in self._tries:
            self._tries[key] = PrefillJobAttempt(attempt=attempt, worker=worker, name=self._names.worker(worker))
        return self._tries[key]

    def _after(self, found: _JobEvent) -> int | None:
        return None if self._asked_ms is None else found.time_ms - self._asked_ms

    def _note_missing(self, job: PrefillJobTrace) -> None:
        pulled = [it for it in job.tries if it.worker == job.worker and it.outcome == "completed"]
        if pulled:
            pulled[-1].used = True
        missing = []
        if job.asked_seq is None:
            missing.append(f"when it was asked for: {self.why_not()}")
        if job.outcome == "open":
            missing.append("its end")
        if job.outcome == "pulled" and not pulled:
            missing.append("the answer")
        job.lacks = f"the log does not tell {', nor '.join(missing)}" if missing else ""


def _place(it: PrefillJobAttempt) -> tuple[int, int]:
    return it.started_seq or it.ended_seq or 0, it.attempt
