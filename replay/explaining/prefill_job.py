"""A job by its events, looked for in the jobs stream near the request that it is about.

A message is decoded only if it names the job; so the stretch that is looked through costs what its reading costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from core.codec import Message, decode_message
from core.errors import Corrupt
from core.event_json import time_text
from core.events import Event, UnknownEvent, WorkerLeft, WorkerLost
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
from replay.explaining.prefill_form import JobTry, PrefillJob
from replay.recording.participants import Participants
from replay.recording.recording import Recording
from replay.recording.request_history import RequestAttempt
from streams.log import Record

EARLY_MS = 1000
"""A job is asked for behind the decision; when that was made is known to some milliseconds."""
LATE_MS = 2000
"""What others say of a job behind its end, and how workers ended that had it, is looked for so long."""
LOOK_MAX = 65_536
"""Messages looked through: some 100 ms."""
ENDED = b"WorkerL"
"""Stands in every message that says that a worker left or was lost."""


class _Told(NamedTuple):
    seq: int
    time_ms: int
    source: str
    event: Event | UnknownEvent


def job_of(
    recording: Recording, tried: RequestAttempt, report: PrefillReport | None, decided_ms: int
) -> PrefillJob | None:
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


def _untold(job: str, tried: RequestAttempt, names: Participants, lacks: str) -> PrefillJob:
    return PrefillJob(job=job, requester=tried.worker, requester_name=names.worker(tried.worker), lacks=lacks)


class _Search:
    """One pass over the stretch of the jobs stream in which the job's events stand."""

    def __init__(self, recording: Recording, tried: RequestAttempt, job: str) -> None:
        self.job: PrefillJob | None = None
        self._recording = recording
        self._names = recording.names
        self._tried = tried
        self._needle = job.encode()
        """Of the job, once it is known; its messages hold it as it is."""
        self._known = job
        self._asked_ms: int | None = None
        self._tries: dict[tuple[str, int], JobTry] = {}
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

    def _about(self, record: Record) -> Iterator[_Told]:
        """What the message says of the job, or of the end of one who has to do with it."""
        payload, whose = record.payload, owner(record.subject)
        if not self._needle:
            wanted = whose == self._tried.worker and self._tried.request.encode() in payload
        else:
            wanted = self._needle in payload or (ENDED in payload and self._concerns(whose))
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

    def _note(self, told: _Told) -> None:
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

    def _requested(self, told: _Told, event: PrefillRequested) -> None:
        ours = event.job == self._known if self._known else event.request == self._tried.request
        if not ours:
            return
        self._known, self._needle, self._asked_ms = event.job, event.job.encode(), told.time_ms
        job = self._the_job()
        job.requester, job.requester_name = told.source, self._names.worker(told.source)
        job.asked_seq, job.asked = told.seq, time_text(told.time_ms)
        job.prompt_tokens, job.cached_tokens, job.wait_max_ms = event.prompt_tokens, event.cached_tokens, event.wait_ms

    def _started(self, told: _Told, event: PrefillStarted) -> None:
        it = self._try(told.source, event.attempt)
        it.started_seq, it.started, it.after_ms = told.seq, time_text(told.time_ms), self._after(told)
        it.delivery = event.delivery

    def _completed(self, told: _Told, event: PrefillCompleted) -> None:
        it = self._answered(told, event.attempt, "completed")
        it.compute_ms, it.cached_tokens, it.keep_ms = event.compute_ms, event.cached_tokens, event.keep_ms
        it.blocks = max(map(len, event.blocks.ids), default=0)

    def _failed(self, told: _Told, event: PrefillFailed) -> None:
        self._answered(told, event.attempt, "dead" if event.dead else "failed").reason = event.reason

    def _answered(self, told: _Told, attempt: int, outcome: str) -> JobTry:
        it = self._try(told.source, attempt)
        it.outcome, it.reason = outcome, ""
        it.ended_seq, it.ended, it.ended_after_ms = told.seq, time_text(told.time_ms), self._after(told)
        return it

    def _pulled(self, told: _Told, event: PrefillPulled) -> None:
        job = self._over(told, "pulled", "")
        job.worker, job.name = event.worker, self._names.worker(event.worker)
        job.blocks, job.bytes, job.tokens, job.transport = event.blocks, event.bytes, event.tokens, event.transport
        job.wait_ms, job.pull_ms = event.wait_ms, event.pull_ms

    def _cancelled(self, told: _Told, event: PrefillCancelled) -> None:
        job = self._over(told, "cancelled", event.reason)
        job.detail, job.wait_ms = event.detail, event.wait_ms

    def _gone(self, told: _Told, reason: str) -> None:
        whose = told.source.removesuffix(LOST_SUFFIX)
        how = f"{'lost' if isinstance(told.event, WorkerLost) else 'left'}: {reason}"
        if self.job is not None and whose == self.job.requester and self.job.outcome == "open":
            self._over(told, "requester_ended", how)
        for (worker, _), it in self._tries.items():
            if worker == whose and it.outcome == "unanswered":
                it.reason = how

    # -----------------------------------------------------------------------------------------------------------

    def _the_job(self) -> PrefillJob:
        if self.job is None:
            self.job = _untold(self._known, self._tried, self._names, "")
        return self.job

    def _over(self, told: _Told, outcome: str, reason: str) -> PrefillJob:
        job = self._the_job()
        job.outcome, job.reason, self._over_ms = outcome, reason, told.time_ms
        job.ended_seq, job.ended, job.ended_after_ms = told.seq, time_text(told.time_ms), self._after(told)
        return job

    def _try(self, worker: str, attempt: int) -> JobTry:
        self._the_job()
        key = (worker, attempt)
        if key not in self._tries:
            self._tries[key] = JobTry(attempt=attempt, worker=worker, name=self._names.worker(worker))
        return self._tries[key]

    def _after(self, told: _Told) -> int | None:
        return None if self._asked_ms is None else told.time_ms - self._asked_ms

    def _lacking(self, job: PrefillJob) -> None:
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


def _place(it: JobTry) -> tuple[int, int]:
    return it.started_seq or it.ended_seq or 0, it.attempt


def _told(record: Record, message: Message) -> Iterator[_Told]:
    for event in message.events:
        yield _Told(record.seq, record.time_ms, message.source, event)
