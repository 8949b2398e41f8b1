"""PrefillJobEnds: how every prefill job of a recording ended, and which did not end as jobs do.

1. A job has one end, said by the worker that asked for it, unless that worker ended; a worker that says it is a new one
   (a new id) ends under it what it had asked for under the old one.
2. Every event says how many jobs its worker has open. From where that is what the log gives, it must stay so: a job
   that was forgotten shows. Behind missing messages nothing is judged until the two agree again.
3. A job without an end whose worker says nothing that contradicts it is open: the log ends there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from core.codec import Message
from core.events import UnknownEvent, WorkerLeft, WorkerLost
from core.events.jobs import PrefillCancelled, PrefillPulled, PrefillRequested
from core.generation import PrefillReport
from core.ids import LOST_SUFFIX, StreamName
from core.subjects import JOBS, owner
from replay.recording.recording import Recording
from streams.log import Record

PULLED = "pulled"
ENDED = "requester_ended"


class JobAnomaly(NamedTuple):
    """Something that jobs do not do."""

    term: str
    recorded: Any
    recomputed: Any
    job: str
    source: str
    stream: StreamName
    seq: int
    time_ms: int


class _Requester:
    """What one worker asked for, under one id."""

    def __init__(self, n_next: int, open_: set[str], *, agreed: bool) -> None:
        self.n_next = n_next
        self.open = open_
        """Always among those that it has open."""
        self.agreed = agreed
        """Whether its count was ours: then these are all, and it must stay so."""
        self.gone = False


class _End(NamedTuple):
    how: str
    """PULLED, or the reason of its cancellation."""
    pulled: PrefillPulled | None


class PrefillJobEnds:
    """See the module's text; made once of a whole recording."""

    def __init__(self, recording: Recording) -> None:
        self.anomalies: list[JobAnomaly] = []
        self.not_judged = 0
        self._names = recording.names
        self._requesters: dict[str, _Requester] = {}
        self._asked: dict[str, str] = {}
        """Job to who asked for it."""
        self._ends: dict[str, _End] = {}
        self._by_others: list[JobAnomaly] = []
        """Ends that another than the requester said: right if that was the same worker before."""
        if JOBS in recording.streams:
            self._begin(recording)
            for record, message in recording.said(JOBS):
                self._heard(record, message)
        self._judge_others()

    def __repr__(self) -> str:
        return f"<PrefillJobEnds of {self.asked} jobs, {len(self.anomalies)} anomalies>"

    @property
    def asked(self) -> int:
        return len(self._asked)

    @property
    def pulled(self) -> int:
        return sum(end.how == PULLED for end in self._ends.values())

    @property
    def cancelled(self) -> Counter[str]:
        """By reason."""
        return Counter(end.how for end in self._ends.values() if end.how != PULLED)

    @property
    def requester_ended(self) -> int:
        """Jobs whose only end is their requester's."""
        return sum(self._requesters[who].gone for job, who in self._asked.items() if job not in self._ends)

    @property
    def open(self) -> int:
        """Jobs that nothing ends."""
        return sum(not self._requesters[who].gone for job, who in self._asked.items() if job not in self._ends)

    def told(self, job: str) -> bool:
        """Whether the jobs stream tells of the job at all."""
        return job in self._asked or job in self._ends

    def against(self, report: PrefillReport) -> Iterator[tuple[str, Any, Any]]:
        """In which terms what is told of a job with the first token is not what the jobs stream tells; none where
        the log ends before the job."""
        end = self._ends.get(report.job)
        if end is None:
            return
        if end.how != report.outcome:
            yield "end", report.outcome, end.how
        elif end.pulled is not None:
            for term, said, told in (
                ("worker", report.worker, end.pulled.worker),
                ("tokens", report.pulled_tokens, end.pulled.tokens),
                ("wait_ms", report.wait_ms, end.pulled.wait_ms),
                ("pull_ms", report.pull_ms, end.pulled.pull_ms),
            ):
                if said != told:
                    yield term, said, told

    # -----------------------------------------------------------------------------------------------------------

    def _begin(self, recording: Recording) -> None:
        """What was open where the recording begins is taken from the snapshot there."""
        first = {stream: recording.archive.span(stream).first_seq - 1 for stream in recording.streams}
        if first[JOBS]:
            for worker, part in recording.state_before(first).jobs.parts.items():
                open_ = set(part.asked)
                self._requesters[worker] = _Requester(part.chain.n_next, open_, agreed=part.known)
                self._asked.update(dict.fromkeys(open_, str(worker)))

    def _heard(self, record: Record, message: Message) -> None:
        whose = owner(record.subject)
        if message.source == whose + LOST_SUFFIX:
            if any(isinstance(event, WorkerLost) for event in message.events):
                self._requester(whose, 0).gone = True
        elif message.source == whose:
            it = self._requester(whose, message.n)
            if message.n < it.n_next or it.gone:
                return  # said once more, or by one that is over
            if message.n > it.n_next:
                self.not_judged += 1
                it.agreed = False
                it.open.clear()
            it.n_next = message.n + 1
            for event in message.events:
                self._said(record, whose, it, event)

    def _requester(self, whose: str, n: int) -> _Requester:
        if whose not in self._requesters:
            self._requesters[whose] = _Requester(n, set(), agreed=False)
        return self._requesters[whose]

    def _said(self, record: Record, whose: str, it: _Requester, event: object) -> None:
        if isinstance(event, WorkerLeft):
            it.gone = True
        elif isinstance(event, UnknownEvent):
            it.agreed = False
        elif isinstance(event, PrefillRequested):
            self._asked[event.job] = whose
            it.open.add(event.job)
            self._count(record, whose, it, event)
        elif isinstance(event, PrefillPulled | PrefillCancelled):
            self._end(record, whose, it, event)
            self._count(record, whose, it, event)

    def _end(self, record: Record, whose: str, it: _Requester, event: PrefillPulled | PrefillCancelled) -> None:
        it.open.discard(event.job)
        end = _End(PULLED, event) if isinstance(event, PrefillPulled) else _End(event.reason, None)
        asked_by, before = self._asked.get(event.job), self._ends.get(event.job)
        if before is not None:
            self.anomalies.append(_anomaly("ends", [before.how, end.how], [before.how], event.job, whose, record))
            return
        self._ends[event.job] = end
        if asked_by is None:
            self.not_judged += not it.agreed
            if it.agreed:
                self.anomalies.append(_anomaly("unasked", end.how, "", event.job, whose, record))
                it.agreed = False
        elif asked_by != whose:
            self._requester(asked_by, 0).open.discard(event.job)
            self._by_others.append(_anomaly("owner", whose, asked_by, event.job, whose, record))

    def _count(
        self, record: Record, whose: str, it: _Requester, event: PrefillRequested | PrefillPulled | PrefillCancelled
    ) -> None:
        """Whether it has as many jobs open as it says."""
        if event.open == len(it.open):
            it.agreed = True
        elif it.agreed:
            self.anomalies.append(_anomaly("open", event.open, len(it.open), event.job, whose, record))
            it.agreed = False

    def _judge_others(self) -> None:
        """An end that another said is right if the other is the same worker under a new id."""
        for anomaly in self._by_others:
            names = {self._names.worker(who) for who in (anomaly.recorded, anomaly.recomputed)}
            if len(names) > 1 and not self._requesters[anomaly.recomputed].gone:
                self.anomalies.append(anomaly)
        self.anomalies.sort(key=lambda anomaly: anomaly.seq)


def _anomaly(term: str, recorded: Any, recomputed: Any, job: str, whose: str, record: Record) -> JobAnomaly:
    return JobAnomaly(term, recorded, recomputed, job, whose, JOBS, record.seq, record.time_ms)
