"""Where the prompt of a request was computed: the decode worker's verdict, and the prefill job by its events.

The job is searched in the jobs stream near its request. Only messages that name the job are decoded, so a search costs
little more than reading the messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from core.codec import Message, decode_message
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
from replay.explain.explanation import PrefillHint, PrefillJobAttempt, PrefillJobTrace, PrefillOutcome
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
"""What became of a job, for people."""


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


def prefill_report(recording: Recording, tried: RequestAttempt) -> PrefillReport | None:
    """What the worker said; None if no first token came, or nobody else could have computed the prompt."""
    events = recording.events([tried.prefilled_at]) if tried.prefilled_at else ()
    return next((event.prefill for _, event in events if isinstance(event, RequestPrefilled)), None)


def prefill_outcome(report: PrefillReport, worker: str, names: Participants) -> PrefillOutcome:
    """The verdict of that worker, told."""
    here, there = names.worker(worker), names.worker(report.worker)
    said = msgspec.structs.asdict(report) | {"worker": report.worker or None, "name": there if report.worker else None}
    del said["job"]
    return PrefillOutcome(**said, text=verdict_text(report, here), came=_came(report, here, there))


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
    text = OUTCOME_TEXTS.get(outcome, outcome.replace("_", " "))
    return text if detail in text else f"{text} ({detail})"


EARLY_MS = 1000
"""A job is asked for behind the decision; when that was made is known to some milliseconds."""
LATE_MS = 2000
"""What others say of a job behind its end, and how workers ended that had it, is looked for so long."""
LOOK_MAX = 65_536
"""Messages looked through: some 100 ms."""
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
        return None  # its worker had nobody to ask
    known = "" if report is None else report.job
    if JOBS not in recording.streams:
        return _untold(known, tried, recording.names, "the log has no jobs stream") if known else None
    search = _Search(recording, tried, known)
    search.run(decided_ms)
    if search.job is not None:
        return search.job
    return _untold(known, tried, recording.names, search.why_not()) if known else None


def _untold(job: str, tried: RequestAttempt, names: Participants, lacks: str) -> PrefillJobTrace:
    return PrefillJobTrace(job=job, requester=tried.worker, requester_name=names.worker(tried.worker), lacks=lacks)


class _Search:
    """One pass over the stretch of the jobs stream in which the job's events stand."""

    def __init__(self, recording: Recording, tried: RequestAttempt, job: str) -> None:
        self.job: PrefillJobTrace | None = None
        self._recording = recording
        self._names = recording.names
        self._tried = tried
        self._needle = job.encode()
        """Of the job, once it is known; its messages hold it as it is."""
        self._known = job
        self._asked_ms: int | None = None
        self._tries: dict[tuple[str, int], PrefillJobAttempt] = {}
        self._start = 1
        self._over_ms: int | None = None

    def __repr__(self) -> str:
        return f"<Search for {self._known or 'a job'} of {self._tried.request}>"

    def run(self, decided_ms: int) -> None:
        """The job is found, with all that is told of it near enough."""
        archive, tried = self._recording.archive, self._tried
        start = self._start = archive.seek(JOBS, decided_ms - EARLY_MS)
        last_ms = max(decided_ms, tried.prefilled_ms, self._ended_ms()) + LATE_MS
        for record in archive.read(JOBS, start, start + LOOK_MAX):
            if record.time_ms > last_ms and self._is_enough(record.time_ms):
                break
            for told in self._about(record):
                self._note(told)
        if self.job is not None:
            self.job.tries = sorted(self._tries.values(), key=_place)
            self._lacking(self.job)

    def why_not(self) -> str:
        """Why nothing of it was found."""
        span = self._recording.archive.span(JOBS)
        begin = max(span.first_seq, span.log_first_seq)
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

    def _about(self, record: Record) -> Iterator[_JobEvent]:
        """What the message says of the job, or of the end of one who has to do with it."""
        payload, whose = record.payload, owner(record.subject)
        if not self._needle:
            wanted = whose == self._tried.worker and self._tried.request.encode() in payload
        else:
            wanted = self._needle in payload or (WORKER_END_MARK in payload and self._concerns(whose))
        if not wanted:
            return
        try:
            message = decode_message(payload)
        except Corrupt:
            return
        if message.source in {whose, whose + LOST_SUFFIX}:
            yield from _told(record, message)

    def _concerns(self, whose: str) -> bool:
        return whose == self._tried.worker or any(worker == whose for worker, _ in self._tries)

    def _note(self, told: _JobEvent) -> None:
        event = told.event
        if isinstance(event, WorkerLeft | WorkerLost):
            self._gone(told, event.reason)
        elif isinstance(event, PrefillRequested):
            self._requested(told, event)
        elif getattr(event, "job", None) == self._known and self._known:
            match event:
                case PrefillStarted():
                    self._started(told, event)
                case PrefillCompleted():
                    self._completed(told, event)
                case PrefillFailed():
                    self._failed(told, event)
                case PrefillPulled():
                    self._pulled(told, event)
                case PrefillCancelled():
                    self._cancelled(told, event)

    # --- what is said ------------------------------------------------------------------------------------------

    def _requested(self, told: _JobEvent, event: PrefillRequested) -> None:
        ours = event.job == self._known if self._known else event.request == self._tried.request
        if not ours:
            return
        self._known, self._needle, self._asked_ms = event.job, event.job.encode(), told.time_ms
        job = self._the_job()
        job.requester, job.requester_name = told.source, self._names.worker(told.source)
        job.asked_seq, job.asked = told.seq, time_text(told.time_ms)
        job.prompt_tokens, job.cached_tokens, job.wait_max_ms = event.prompt_tokens, event.cached_tokens, event.wait_ms

    def _started(self, told: _JobEvent, event: PrefillStarted) -> None:
        it = self._try(told.source, event.attempt)
        it.started_seq, it.started, it.after_ms = told.seq, time_text(told.time_ms), self._after(told)
        it.delivery = event.delivery

    def _completed(self, told: _JobEvent, event: PrefillCompleted) -> None:
        it = self._answered(told, event.attempt, "completed")
        it.compute_ms, it.cached_tokens, it.keep_ms = event.compute_ms, event.cached_tokens, event.keep_ms
        it.blocks = max(map(len, event.blocks.ids), default=0)

    def _failed(self, told: _JobEvent, event: PrefillFailed) -> None:
        self._answered(told, event.attempt, "dead" if event.dead else "failed").reason = event.reason

    def _answered(self, told: _JobEvent, attempt: int, outcome: str) -> PrefillJobAttempt:
        it = self._try(told.source, attempt)
        it.outcome, it.reason = outcome, ""
        it.ended_seq, it.ended, it.ended_after_ms = told.seq, time_text(told.time_ms), self._after(told)
        return it

    def _pulled(self, told: _JobEvent, event: PrefillPulled) -> None:
        job = self._over(told, "pulled", "")
        job.worker, job.name = event.worker, self._names.worker(event.worker)
        job.blocks, job.bytes, job.tokens, job.transport = event.blocks, event.bytes, event.tokens, event.transport
        job.wait_ms, job.pull_ms = event.wait_ms, event.pull_ms

    def _cancelled(self, told: _JobEvent, event: PrefillCancelled) -> None:
        job = self._over(told, "cancelled", event.reason)
        job.detail, job.wait_ms = event.detail, event.wait_ms

    def _gone(self, told: _JobEvent, reason: str) -> None:
        whose = told.source.removesuffix(LOST_SUFFIX)
        how = f"{'lost' if isinstance(told.event, WorkerLost) else 'left'}: {reason}"
        if self.job is not None and whose == self.job.requester and self.job.outcome == "open":
            self._over(told, "requester_ended", how)
        for (worker, _), it in self._tries.items():
            if worker == whose and it.outcome == "unanswered":
                it.reason = how

    # -----------------------------------------------------------------------------------------------------------

    def _the_job(self) -> PrefillJobTrace:
        if self.job is None:
            self.job = _untold(self._known, self._tried, self._names, "")
        return self.job

    def _over(self, told: _JobEvent, outcome: str, reason: str) -> PrefillJobTrace:
        job = self._the_job()
        job.outcome, job.reason, self._over_ms = outcome, reason, told.time_ms
        job.ended_seq, job.ended, job.ended_after_ms = told.seq, time_text(told.time_ms), self._after(told)
        return job

    def _try(self, worker: str, attempt: int) -> PrefillJobAttempt:
        self._the_job()
        key = (worker, attempt)
        if key not in self._tries:
            self._tries[key] = PrefillJobAttempt(attempt=attempt, worker=worker, name=self._names.worker(worker))
        return self._tries[key]

    def _after(self, told: _JobEvent) -> int | None:
        return None if self._asked_ms is None else told.time_ms - self._asked_ms

    def _lacking(self, job: PrefillJobTrace) -> None:
        pulled = [it for it in job.tries if it.worker == job.worker and it.outcome == "completed"]
        if pulled:
            pulled[-1].used = True
        lacks = []
        if job.asked_seq is None:
            lacks.append(f"when it was asked for: {self.why_not()}")
        if job.outcome == "open":
            lacks.append("its end")
        if job.outcome == "pulled" and not pulled:
            lacks.append("the answer")
        job.lacks = f"the log does not tell {', nor '.join(lacks)}" if lacks else ""


def _place(it: PrefillJobAttempt) -> tuple[int, int]:
    return it.started_seq or it.ended_seq or 0, it.attempt


def _told(record: Record, message: Message) -> Iterator[_JobEvent]:
    for event in message.events:
        yield _JobEvent(record.seq, record.time_ms, message.source, event)
