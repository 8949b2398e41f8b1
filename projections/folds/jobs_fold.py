"""JobsFold: the prefill jobs that decode workers requested and that are not over, and the worker that computes each.

How a part becomes whole again: behind a gap a part counts no job, so all jobs that it counts later are open. An event
that opens a job adds it; an event that ends a job removes it if it was counted. The counted jobs are thus always a
subset of the open ones, and equal to them as soon as their number is the one that the worker reports (`open`). Numbers
that agree by accident would need a counted job that is not open. No gap makes one. An end that this program cannot
read could, or a worker that miscounts: then the next number very likely differs, and the part begins from nothing
again. Two such errors that cancel out between two numbers are noticed when a later number differs.

`prefill_queue` is a pure view of these jobs: their number, and the wait of the oldest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, assert_never

import msgspec

from core.codec import Message
from core.events import UnknownEvent, WorkerLeft
from core.events.jobs import (
    JobEvent,
    JobsRestated,
    PrefillCancelled,
    PrefillCompleted,
    PrefillFailed,
    PrefillPulled,
    PrefillRequested,
    PrefillStarted,
)
from core.ids import WorkerId
from core.subjects import job_kind
from projections.digest import MASK64, mix
from projections.folds.source_fold import Chain, SourceFold, stamp

ANSWERED_KEPT = 4096
"""Bound of answered jobs with requesters that have not ended them yet. The oldest makes room."""
OPEN_MAX = 65_536
"""Jobs of one part at most; beyond, it is unknown until it has fewer. No worker of ours has a thousandth of that."""


class RequestedJob(msgspec.Struct, frozen=True):
    """A job as its requester asked for it."""

    model: str
    tokens: int
    """Prompt tokens that the requester's cache lacked."""
    asked_ms: int
    """By the requester's clock; for people and metrics."""


class JobsPart(msgspec.Struct):
    """One worker's part of the jobs stream: open jobs of a decode worker, claimed jobs of a prefill worker."""

    worker: WorkerId
    chain: Chain = msgspec.field(default_factory=Chain)
    known: bool = True
    """False from a gap until what it says of how many are open is what we count."""
    asked: dict[str, RequestedJob] = msgspec.field(default_factory=dict)
    taken: dict[str, str] = msgspec.field(default_factory=dict)
    """Job to requester."""
    answers: bool = False
    """True for a prefill worker, which writes to another subject. No part of the digest."""
    kind: str = ""
    """Of the jobs that it asks for: they have a subject of their own. No part of the digest."""
    digest: int = 0

    @property
    def open(self) -> int:
        """Jobs that this part counts."""
        return len(self.asked) + len(self.taken)


class JobsFold(SourceFold[WorkerId, JobsPart]):
    """The fold of the jobs stream."""

    def __init__(self) -> None:
        super().__init__()
        """The part of each worker that wrote jobs and has not ended."""
        self.dead_letters = 0
        """Jobs given up by the queue since this fold began; no part of the digest."""
        self.answered: dict[str, None] = {}
        """Jobs computed or given up for good, oldest first, until their requesters go on. No part of the digest
        either: it only bridges the moment between two workers' words."""

    def __repr__(self) -> str:
        return f"<JobsFold {self.open} jobs open, digest {self.digest:016x}>"

    @property
    def open(self) -> int:
        """Jobs asked for and not over."""
        return sum(len(part.asked) for part in self.parts.values())

    @property
    def taken(self) -> int:
        """Jobs that prefill workers say they compute."""
        return sum(len(part.taken) for part in self.parts.values())

    def waiting(self) -> dict[str, RequestedJob]:
        """Jobs that no prefill worker has claimed yet. O(workers + open jobs)."""
        taken = {job for part in self.parts.values() if part.taken for job in part.taken}
        return {
            job: asked
            for part in self.parts.values()
            if part.asked
            for job, asked in part.asked.items()
            if job not in taken and job not in self.answered
        }

    def restore(self, part: JobsPart) -> None:
        """A part as a snapshot has it is there."""
        self.parts[part.worker] = part
        part.digest = 0
        self._account(part.worker, part)

    def _begin(self, source: WorkerId) -> JobsPart:
        return self.parts.setdefault(source, JobsPart(source))

    def _void(self, part: JobsPart) -> None:
        _forget(part)

    def _fold(self, part: JobsPart, message: Message) -> None:
        for event in message.events:
            if isinstance(event, WorkerLeft):
                self._end(part.worker, f"left: {event.reason}")
                return
            self._event(part, event, message.sent_ms)

    def _event(self, part: JobsPart, event: object, sent_ms: int) -> None:
        if isinstance(event, UnknownEvent):
            self.unknown_events += 1
        if isinstance(event, JobsRestated):
            if event.open != part.open:
                _forget(part)
            part.known = event.open == part.open
        if not isinstance(event, JobEvent):
            return
        part.answers = isinstance(event, PrefillStarted | PrefillCompleted | PrefillFailed)
        if isinstance(event, PrefillRequested):
            part.kind = job_kind(event.model, event.block_size)
        _count(part, event, sent_ms)
        if part.known and event.open != part.open:
            _forget(part)
            _count(part, event, sent_ms)
        part.known = event.open == part.open
        self._note_answer(event)

    def _note_answer(self, event: JobEvent) -> None:
        match event:
            case PrefillPulled() | PrefillCancelled():
                self.answered.pop(event.job, None)
            case PrefillCompleted():
                self._answer(event.job)
            case PrefillFailed(dead=True):
                self.dead_letters += 1
                self._answer(event.job)

    def _answer(self, job: str) -> None:
        self.answered[job] = None
        if len(self.answered) > ANSWERED_KEPT:
            del self.answered[next(iter(self.answered))]

    def _weight(self, part: JobsPart) -> int:
        jobs_sum = _jobs_sum(part.asked, part.taken) if part.known else 0
        return stamp(part.chain, mix(part.worker, part.known, jobs_sum))

    def _is_known(self, part: JobsPart) -> bool:
        return part.known

    def _end(self, source: WorkerId, reason: str) -> None:
        part = self.parts.pop(source, None)
        for job in part.asked if part is not None else ():
            self.answered.pop(job, None)
        self._bury(source, part, reason)


def _forget(part: JobsPart) -> None:
    """Nothing is counted any more; unknown until that is so of the worker, too."""
    part.known = False
    part.asked.clear()
    part.taken.clear()


def _count(part: JobsPart, event: JobEvent, sent_ms: int) -> None:
    """The part has what the event opens, and not what it ends."""
    match event:
        case PrefillRequested():
            if len(part.asked) < OPEN_MAX:
                part.asked[event.job] = RequestedJob(event.model, event.prompt_tokens - event.cached_tokens, sent_ms)
        case PrefillPulled() | PrefillCancelled():
            part.asked.pop(event.job, None)
        case PrefillStarted():
            if len(part.taken) < OPEN_MAX:
                part.taken[event.job] = event.requester
        case PrefillCompleted() | PrefillFailed():
            part.taken.pop(event.job, None)
        case _:
            assert_never(event)


def _jobs_sum(*jobs: Iterable[str]) -> int:
    """A sum over the jobs that does not depend on their order."""
    return sum(mix(side, job) for side, table in enumerate(jobs) for job in table) & MASK64


class PrefillQueue(NamedTuple):
    """Length and age of the prefill queue. A lower bound while jobs of some workers are unknown."""

    waiting: int
    """Jobs that no prefill worker has claimed yet."""
    waiting_tokens: int
    """Prompt tokens to be computed for these."""
    oldest_ms: int
    """Wait of the oldest of them; 0 if none waits, or if the clock of its requester is ahead."""
    open: int
    """Jobs requested and not over: unclaimed, being computed, or with their blocks being pulled."""
    taken: int
    """Jobs that somebody computes, as prefill workers say."""
    dead_letters: int
    """Jobs handed out too often and given up, since the fold began."""
    unknown: int
    """Workers with jobs that this fold may lack."""


def prefill_queue(jobs: JobsFold, now_ms: int, model: str | None = None) -> PrefillQueue:
    """The queue of one model, or of all; `now_ms` is wall-clock time, compared with the requesters' clocks.

    What is taken, dead letters and what is unknown count for all models. O(workers + jobs open).
    """
    waiting = [asked for asked in jobs.waiting().values() if model in {None, asked.model}]
    return PrefillQueue(
        waiting=len(waiting),
        waiting_tokens=sum(asked.tokens for asked in waiting),
        oldest_ms=max(0, *(now_ms - asked.asked_ms for asked in waiting)) if waiting else 0,
        open=sum(model in {None, asked.model} for part in jobs.parts.values() for asked in part.asked.values()),
        taken=jobs.taken,
        dead_letters=jobs.dead_letters,
        unknown=jobs.incomplete,
    )
