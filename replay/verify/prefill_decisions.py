"""Prefill decisions: every recorded verdict on where to compute a prompt made again, and compared with its job.

A verdict rests on what its report says and on nothing else, so it is always judged, unless another version of the
rules gave it. That the two settings it states were those in force cannot be checked: a worker does not say in the log
which revision it had read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

import msgspec

from core.generation import PrefillReport
from core.ids import ReplicaId, StreamName
from core.subjects import ROUTING, owner
from projections.policy.prefill_choice import PREFILL_OUTCOMES, PREFILL_REASONS, decide_prefill, inputs_of
from replay.recording.messages import TypedEvent, partial_reader
from replay.recording.recording import Recording
from replay.verify.prefill_jobs import PrefillJobEnds

PREFILLED = "RequestPrefilled"
REPORT = b"uncached_tokens"
"""Stands in every message that has such a report, and in no other of the routing stream."""
KEPT = 100
"""The first differences are told, all are counted."""
PREFILL_TERMS = {
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
    """A verdict that does not follow from its inputs, or a job that is not as it was said to be."""

    term: str
    """Of PREFILL_TERMS."""
    recorded: Any
    recomputed: Any
    job: str = ""
    request: str = ""
    """Empty where the jobs stream alone tells of it."""
    attempt: int = 0
    source: str
    """The replica, or the worker, whose message says what does not fit."""
    source_name: str
    stream: StreamName
    seq: int
    time_ms: int


class JobCounts(msgspec.Struct, kw_only=True):
    """Jobs of the whole recording, by how they ended."""

    asked: int = 0
    """Those that were open where the recording begins are among them."""
    pulled: int = 0
    cancelled: dict[str, int] = msgspec.field(default_factory=dict)
    """By reason."""
    requester_ended: int = 0
    open: int = 0
    """Those that nothing in the log ends: it ends before them, or says nothing of why."""
    different: int = 0
    not_judged: int = 0
    """Places where messages of a worker are missing, and ends of jobs that were asked for in what is missing."""
    untold: int = 0
    """Jobs that verdicts name and the jobs stream does not have: what became of them cannot be compared."""


class PrefillResult(msgspec.Struct, kw_only=True):
    """What was found."""

    total: int = 0
    """Verdicts in the range."""
    verified: int = 0
    different: int = 0
    not_judged: dict[str, int] = msgspec.field(default_factory=dict)
    """`version`: of rules that this program does not have."""
    remote: int = 0
    """Of the verdicts, those that asked others."""
    jobs: JobCounts = msgspec.field(default_factory=JobCounts)
    differences: list[PrefillDifference] = msgspec.field(default_factory=list)
    """The first KEPT of them."""

    @property
    def differ(self) -> int:
        """All that does not fit."""
        return self.different + self.jobs.different


class _PrefilledEvent(TypedEvent):
    request: str = ""
    attempt: int = 0
    prefill: PrefillReport | None = None


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
    tell: Callable[[str], None] = lambda _: None,
) -> PrefillResult:
    """Of the verdicts that stand in the routing stream from `start` up to `end` (not included), of these replicas if
    they are given; jobs are those of the whole recording. `tell` hears of each verdict, in the order of the log.

    Some 2 us per message of the routing stream, and 10 us per message of the jobs stream.
    """
    ends = PrefillJobEnds(recording)
    judge = _PrefillJudge(recording, ends)
    for said in _reports(recording, start, end, replicas):
        tell(judge.verdict(said))
    return judge.found()


def _reports(
    recording: Recording, start: int, end: int | None, replicas: Collection[ReplicaId] | None
) -> Iterator[_RecordedReport]:
    for record in recording.archive.read(ROUTING, start, end) if ROUTING in recording.streams else ():
        whose = owner(record.subject)
        if REPORT not in record.payload or (replicas is not None and whose not in replicas):
            continue
        message = _read_message(record.payload)
        if message is None or message.source != whose:
            continue
        for event in message.events:
            if event.type == PREFILLED and event.prefill is not None:
                yield _RecordedReport(whose, record.seq, record.time_ms, event.request, event.attempt, event.prefill)


class _PrefillJudge:
    """Comes to a verdict on each report as it is given."""

    def __init__(self, recording: Recording, ends: PrefillJobEnds) -> None:
        self._recording = recording
        self._ends = ends
        self._found = PrefillResult()
        self._not_judged: Counter[str] = Counter()

    def verdict(self, said: _RecordedReport) -> str:
        """One line for the digest of all findings."""
        found, report = self._found, said.report
        found.total += 1
        found.remote += report.remote
        about = f"{said.request}\t{said.attempt}\tprefill {report.reason}"
        if report.reason not in PREFILL_REASONS or report.outcome not in PREFILL_OUTCOMES:
            self._not_judged["version"] += 1
            return f"{about}\tnot judged\n"
        made = decide_prefill(inputs_of(report))
        terms = [*_of_verdict(report, made), *self._ends.against(report)]
        found.verified += not terms
        found.different += bool(terms)
        found.jobs.untold += bool(report.job) and not self._ends.told(report.job)
        if terms and len(found.differences) < KEPT:
            term, recorded, recomputed = terms[0]
            found.differences.append(self._difference(said, term, recorded, recomputed))
        return f"{about}\t{made.reason}\t{terms[0][0] if terms else 'verified'}\n"

    def found(self) -> PrefillResult:
        """All of it, once every report was judged."""
        found, ends, names = self._found, self._ends, self._recording.names
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
        for anomaly in ends.anomalies[: KEPT - len(found.differences)]:
            found.differences.append(PrefillDifference(**anomaly._asdict(), source_name=names.worker(anomaly.source)))
        return found

    def _difference(self, said: _RecordedReport, term: str, recorded: Any, recomputed: Any) -> PrefillDifference:
        return PrefillDifference(
            term=term,
            recorded=recorded,
            recomputed=recomputed,
            job=said.report.job,
            request=said.request,
            attempt=said.attempt,
            source=said.replica,
            source_name=self._recording.names.replica(said.replica),
            stream=ROUTING,
            seq=said.seq,
            time_ms=said.time_ms,
        )


def _of_verdict(report: PrefillReport, made: PrefillReport) -> Iterator[tuple[str, Any, Any]]:
    if report.reason != made.reason:
        yield "reason", report.reason, made.reason
    if report.remote != made.remote:
        yield "remote", report.remote, made.remote
    if bool(report.job) != report.remote or bool(report.outcome) != bool(report.job):
        yield "job", report.job or report.outcome, "none" if not report.remote else "one"
