"""Prefill checks: recorded decisions on where to compute a prompt made again, and the ends of prefill jobs.

1. A decision depends on its report alone, so it is always judged, unless rules of a newer program made it. Its two
   settings cannot be checked: the log does not hold which revision a worker had read.
2. A job has one end, in a message of the worker that requested it, unless that worker ended. A worker with a new id
   ends the jobs of its old id under the new one.
3. Every event states how many jobs its worker has open. Once this number and the log agree, they must stay equal, so a
   forgotten job shows. Behind missing messages nothing is judged until they agree again.
4. A job without an end is open if its worker states nothing that contradicts it: the log ends there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from core.codec import Message
from core.events import RequestPrefilled, UnknownEvent, WorkerLeft, WorkerLost
from core.events.compact_progress import COMPACT_PREFILLED
from core.events.jobs import PrefillCancelled, PrefillPulled, PrefillRequested
from core.generation import PrefillReport
from core.ids import LOST_SUFFIX, ReplicaId, StreamName
from core.subjects import JOBS, ROUTING, owner
from projections.policy.decide import decide_prefill
from projections.policy.prefill_choice import inputs_of
from projections.policy.rules import RULES
from replay.recording.messages import UNREADABLE, TypedEvent, decode_prefilled, partial_reader
from replay.recording.recording import Recording
from replay.verify.evidence import is_newer_program
from streams.log import Record

PULLED = "pulled"
ENDED = "requester_ended"


class JobAnomaly(NamedTuple):
    """A contradiction in the events of a job."""

    term: str
    recorded: Any
    recomputed: Any
    job: str
    source: str
    stream: StreamName
    seq: int
    time_ms: int


class _Requester:
    """The jobs that one worker requested, under one id."""

    def __init__(self, n_next: int, open_: set[str], *, agreed: bool) -> None:
        self.n_next = n_next
        self.open = open_
        """Jobs that it has open, if not all of them."""
        self.agreed = agreed
        """True once its own count of open jobs was the log's: then `open` has all, and the counts must stay equal."""
        self.gone = False


class _End(NamedTuple):
    how: str
    """PULLED, or the reason of its cancellation."""
    pulled: PrefillPulled | None


class PrefillJobEnds:
    """The end of every prefill job of a recording, and the jobs that did not end as jobs do; made once."""

    def __init__(self, recording: Recording) -> None:
        self.anomalies: list[JobAnomaly] = []
        self.not_judged = 0
        self._recording = recording
        self._requesters: dict[str, _Requester] = {}
        self._asked: dict[str, str] = {}
        """Job to its requester."""
        self._ends: dict[str, _End] = {}
        self._by_others: list[JobAnomaly] = []
        """Ends in messages of a worker other than the requester: right if it is the same worker under a new id."""
        if JOBS in recording.streams:
            self._begin(recording)
            for record, message in recording.messages(JOBS):
                self._on_message(record, message)
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
        """Jobs that ended only with their requester."""
        return sum(self._requesters[who].gone for job, who in self._asked.items() if job not in self._ends)

    @property
    def open(self) -> int:
        """Jobs that nothing ends."""
        return sum(not self._requesters[who].gone for job, who in self._asked.items() if job not in self._ends)

    def has_job(self, job: str) -> bool:
        """True if the jobs stream has an event of the job."""
        return job in self._asked or job in self._ends

    def differences(self, report: PrefillReport) -> Iterator[tuple[str, Any, Any]]:
        """The terms in which the report with the first token differs from the jobs stream; none where the log ends
        before the job."""
        end = self._ends.get(report.job)
        if end is None:
            return
        if end.how != report.outcome:
            yield "end", report.outcome, end.how
        elif end.pulled is not None:
            for term, reported, pulled in (
                ("worker", report.worker, end.pulled.worker),
                ("tokens", report.pulled_tokens, end.pulled.tokens),
                ("wait_ms", report.wait_ms, end.pulled.wait_ms),
                ("pull_ms", report.pull_ms, end.pulled.pull_ms),
            ):
                if reported != pulled:
                    yield term, reported, pulled

    # -----------------------------------------------------------------------------------------------------------

    def _begin(self, recording: Recording) -> None:
        """Jobs that were open at the start of the recording come from the snapshot there."""
        if first := recording.start[JOBS]:
            for worker, part in recording.state_before({**recording.end, JOBS: first}).jobs.parts.items():
                open_ = set(part.asked)
                self._requesters[worker] = _Requester(part.chain.n_next, open_, agreed=part.known)
                self._asked.update(dict.fromkeys(open_, str(worker)))

    def _on_message(self, record: Record, message: Message) -> None:
        whose = owner(record.subject)
        if message.source == whose + LOST_SUFFIX:
            if any(isinstance(event, WorkerLost) for event in message.events):
                self._requester(whose, 0).gone = True
        elif message.source == whose:
            it = self._requester(whose, message.n)
            if message.n < it.n_next or it.gone:
                return  # a repeated message, or one behind its source's end
            if message.n > it.n_next:
                self.not_judged += 1
                it.agreed = False
                it.open.clear()
            it.n_next = message.n + 1
            for event in message.events:
                self._on_event(record, whose, it, event)

    def _requester(self, whose: str, n: int) -> _Requester:
        if whose not in self._requesters:
            self._requesters[whose] = _Requester(n, set(), agreed=False)
        return self._requesters[whose]

    def _on_event(self, record: Record, whose: str, it: _Requester, event: object) -> None:
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
        """The number of open jobs that the event states is compared."""
        if event.open == len(it.open):
            it.agreed = True
        elif it.agreed:
            self.anomalies.append(_anomaly("open", event.open, len(it.open), event.job, whose, record))
            it.agreed = False

    def _judge_others(self) -> None:
        """An end by another worker is right if that is the requester under a new id."""
        for anomaly in self._by_others:
            names = {self._recording.names.worker(who) for who in (anomaly.recorded, anomaly.recomputed)}
            if len(names) > 1 and not self._requesters[anomaly.recomputed].gone:
                self.anomalies.append(anomaly)
        self.anomalies.sort(key=lambda anomaly: anomaly.seq)


def _anomaly(term: str, recorded: Any, recomputed: Any, job: str, whose: str, record: Record) -> JobAnomaly:
    return JobAnomaly(term, recorded, recomputed, job, whose, JOBS, record.seq, record.time_ms)


PREFILLED = RequestPrefilled.__name__
REPORT = b"uncached_tokens"
"""Stands in every message that has such a report, and in no other of the routing stream."""
DIFFERENCES_KEPT = 100
"""The first differences are told, all are counted."""
PREFILL_TERMS = {
    "rules": "the rules: this program does not have their version",
    "remote": "whether to ask others",
    "reason": "the reason of the verdict",
    "job": "whether there was a job",
    "end": "how the job ended",
    "worker": "whose blocks were pulled",
    "tokens": "prompt tokens not computed",
    "wait_ms": "the wait for the answer",
    "pull_ms": "the time to the first token from there",
    "ends": "the ends of a job: there is one",
    "owner": "who ended the job: its requester",
    "unasked": "the asking for a job that was ended",
    "open": "jobs open by their requester's own count",
}
"""Every term in which verdicts or jobs may differ, for people."""


class PrefillDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that does not follow from its inputs, or a job that differs from its report."""

    term: str
    """Of PREFILL_TERMS."""
    recorded: Any
    recomputed: Any
    job: str = ""
    request: str = ""
    """Empty where only the jobs stream has it."""
    attempt: int = 0
    source: str
    """The replica or worker that sent the message with the difference."""
    source_name: str
    stream: StreamName
    seq: int
    time_ms: int


class JobCounts(msgspec.Struct, kw_only=True):
    """Jobs of the whole recording, by how they ended."""

    asked: int = 0
    """Jobs that were requested, with those that were open where the recording begins."""
    pulled: int = 0
    cancelled: dict[str, int] = msgspec.field(default_factory=dict)
    """By reason."""
    requester_ended: int = 0
    open: int = 0
    """Jobs without an end in the log."""
    different: int = 0
    not_judged: int = 0
    """Gaps in the messages of a worker, and ends of jobs that were requested in a gap."""
    untold: int = 0
    """Jobs that verdicts name and the jobs stream lacks: their ends cannot be compared."""


class PrefillResult(msgspec.Struct, kw_only=True):
    """The findings about prefill decisions and jobs."""

    total: int = 0
    """Verdicts in the range."""
    verified: int = 0
    different: int = 0
    not_judged: dict[str, int] = msgspec.field(default_factory=dict)
    """`version`: of rules that this program does not have, where a newer program is in the log."""
    remote: int = 0
    """Verdicts to use a prefill worker."""
    jobs: JobCounts = msgspec.field(default_factory=JobCounts)
    differences: list[PrefillDifference] = msgspec.field(default_factory=list)
    """The first DIFFERENCES_KEPT of them."""

    @property
    def differ(self) -> int:
        """Verdicts and jobs that differ."""
        return self.different + self.jobs.different


class _PrefilledEvent(TypedEvent):
    request: str = ""
    attempt: int = 0
    prefill: PrefillReport | None = None
    e: msgspec.Raw = msgspec.Raw()
    """The values of its latest version."""


class _RecordedReport(msgspec.Struct):
    """One report where it stands."""

    replica: str
    seq: int
    time_ms: int
    request: str
    attempt: int
    report: PrefillReport


_read_message = partial_reader(_PrefilledEvent)


def verify_prefills(
    recording: Recording,
    start: int = 1,
    end: int | None = None,
    *,
    replicas: Collection[ReplicaId] | None = None,
    on_finding: Callable[[str], None] = lambda _: None,
) -> PrefillResult:
    """The findings about prefill decisions in the routing stream from `start` up to `end` (not included), of these
    replicas if they are given, and about the jobs of the whole recording. `on_finding` gets a line of each verdict,
    in the order of the log.

    Some 2 us per message of the routing stream, and 10 us per message of the jobs stream.
    """
    ends = PrefillJobEnds(recording)
    judge = _PrefillJudge(recording, ends)
    for report in _reports(recording, start, end, replicas):
        on_finding(judge.verdict(report))
    return judge.found()


def _reports(
    recording: Recording, start: int, end: int | None, replicas: Collection[ReplicaId] | None
) -> Iterator[_RecordedReport]:
    for row in recording.archive.rows(ROUTING, start, end):
        if REPORT not in row.payload:
            continue
        whose = owner(row.owner)
        message = _read_message(row.payload) if replicas is None or whose in replicas else None
        if message is None or message.source != whose:
            continue
        for event in message.events:
            first = _prefilled(event)
            if first is not None and first.prefill is not None:
                yield _RecordedReport(whose, row.seq, row.time_ms, first.request, first.attempt, first.prefill)


def _prefilled(event: _PrefilledEvent) -> _PrefilledEvent | RequestPrefilled | None:
    """The first token, if the event is one and can be read."""
    if event.type == COMPACT_PREFILLED:
        with suppress(*UNREADABLE):
            return decode_prefilled(event.e)
    return event if event.type == PREFILLED else None


class _PrefillJudge:
    """Judges each report."""

    def __init__(self, recording: Recording, ends: PrefillJobEnds) -> None:
        self._recording = recording
        self._ends = ends
        self._found = PrefillResult()
        self._not_judged: Counter[str] = Counter()

    def verdict(self, it: _RecordedReport) -> str:
        """One line for the digest of all findings."""
        found, report = self._found, it.report
        found.total += 1
        found.remote += report.remote
        about = f"{it.request}\t{it.attempt}\tprefill {report.reason}"
        made = decide_prefill(inputs_of(report), version=report.rules) if report.rules in RULES else None
        if made is None and self._has_newer_program(report.rules):
            self._not_judged["version"] += 1
            return f"{about}\tnot judged\n"
        terms = [*_of_verdict(report, made), *self._ends.differences(report)]
        found.verified += not terms
        found.different += bool(terms)
        found.jobs.untold += bool(report.job) and not self._ends.has_job(report.job)
        if terms and len(found.differences) < DIFFERENCES_KEPT:
            term, recorded, recomputed = terms[0]
            found.differences.append(self._difference(it, term, recorded, recomputed))
        return f"{about}\t{made.reason if made else ''}\t{terms[0][0] if terms else 'verified'}\n"

    def found(self) -> PrefillResult:
        """All of it, once every report was judged."""
        found, ends = self._found, self._ends
        found.not_judged = dict(sorted(self._not_judged.items()))
        found.jobs = JobCounts(
            asked=ends.asked,
            pulled=ends.pulled,
            cancelled=dict(sorted(ends.cancelled.items())),
            requester_ended=ends.requester_ended,
            open=ends.open,
            different=len(ends.anomalies),
            not_judged=ends.not_judged,
            untold=found.jobs.untold,
        )
        for anomaly in ends.anomalies[: DIFFERENCES_KEPT - len(found.differences)]:
            name = self._recording.names.worker(anomaly.source)
            found.differences.append(PrefillDifference(**anomaly._asdict(), source_name=name))
        return found

    def _has_newer_program(self, version: int) -> bool:
        """True if the rules are beyond these, and a replica joined with a newer program: workers name no version."""
        return version > max(RULES) and any(map(is_newer_program, self._recording.replicas.versions.values()))

    def _difference(self, it: _RecordedReport, term: str, recorded: Any, recomputed: Any) -> PrefillDifference:
        return PrefillDifference(
            term=term,
            recorded=recorded,
            recomputed=recomputed,
            job=it.report.job,
            request=it.request,
            attempt=it.attempt,
            source=it.replica,
            source_name=self._recording.names.replica(it.replica),
            stream=ROUTING,
            seq=it.seq,
            time_ms=it.time_ms,
        )


def _of_verdict(report: PrefillReport, made: PrefillReport | None) -> Iterator[tuple[str, Any, Any]]:
    if made is None:
        yield "rules", report.rules, max(RULES)
        return
    if report.reason != made.reason:
        yield "reason", report.reason, made.reason
    if report.remote != made.remote:
        yield "remote", report.remote, made.remote
    if bool(report.job) != report.remote or bool(report.outcome) != bool(report.job):
        yield "job", report.job or report.outcome, "none" if not report.remote else "one"
