"""Verify: every decision of a recording made again; all must come out as they were recorded, bit for bit.

1. A decision that comes out equal is verified, even if the recording has gaps. One that comes out otherwise is a
   difference, unless the recording is known to lack its inputs: then it is not judged, with the reason. Every routed
   decision is verified, different or not judged.
2. Refused requests are decided again too, and counted apart.
3. Decisions of workers on where to compute a prompt are made again too, and jobs counted
   (`replay.verify.prefill_checks`).
4. Decisions on the size of the fleet are made again, too, and the demand of each period is counted again
   (`replay.verify.scale_checks`), over the whole recording.
5. The decisions in the log are compared with the counts that replicas state (`replay.verify.decision_counts`):
   decisions that were dropped are counted, and those that are missing for no reason are a finding.
6. The digest is of every decision and its verdict, in the order of the log, and then of every decision on a prompt:
   equal digests mean equal findings.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from core.errors import Refused
from core.ids import ReplicaId
from core.keys import DeploymentKey
from core.subjects import ROUTING, owner
from replay.parallel import Progress, collector_paused, parallel_results
from replay.playback.fold_reports import FoldCheck, FoldDifference
from replay.playback.playback import Playback
from replay.recording.gaps import Gaps, RecordingGap
from replay.recording.recording import Recording
from replay.recording.request_history import PLACES
from replay.verify.chain_proof import ChainProof, has_holes, prove
from replay.verify.decision_counts import DecisionCountResult
from replay.verify.judge import DIFFERENT, NOT_JUDGED, VERIFIED, DecisionDifference, Verdict, judge_at, verdicts
from replay.verify.partition import LogShare, Partition
from replay.verify.prefill_checks import PrefillResult, verify_prefills
from replay.verify.scale_checks import Judge, ScaleResult, verify_scale
from streams.archive.archive_format import Excerpt

DIFFERENCES_KEPT = 1000
"""The first of them are kept, all are counted."""
PROGRESS_EVERY = 500
"""Decisions between two reports of progress."""


class RefusalCounts(msgspec.Struct, kw_only=True):
    """Counts of requests that no worker could serve."""

    verified: int = 0
    different: int = 0
    not_judged: int = 0

    total: int = 0
    """All in the range."""
    skipped: dict[str, int] = msgspec.field(default_factory=dict)
    """Reason to how many of those that are not judged are not given at all; see `Playback.skipped`."""

    @property
    def unaccounted(self) -> int:
        """Refusals in the log without a verdict: 0, or there is a bug in verify."""
        return self.total - self.verified - self.different - self.not_judged


class FoldCounts(msgspec.Struct, kw_only=True):
    """Counts of fold digests that replicas reported, compared with the log's folds."""

    compared: int = 0
    different: int = 0
    not_judged: int = 0
    not_judged_by: dict[str, int] = msgspec.field(default_factory=dict)
    """Reason to how many; see `replay.playback.fold_reports.FoldCheck.not_judged`."""
    unreported: int = 0
    """Streams of which a replica reported nothing, since a source was unknown to it."""

    @property
    def equal(self) -> int:
        """Those that are the log's."""
        others = self.not_judged_by.get("history", 0) + self.not_judged_by.get("gap", 0)
        return self.compared - self.different - others

    differences: list[FoldDifference] = msgspec.field(default_factory=list)


class VerifyResult(msgspec.Struct, kw_only=True):
    """The findings of one verification."""

    proof: ChainProof
    decisions: int = 0
    """All that were routed in the range."""
    verified: int = 0
    different: int = 0
    not_judged: dict[str, int] = msgspec.field(default_factory=dict)
    """Reason to how many; see `replay.verify.evidence.REASONS` and `Playback.skipped`."""
    not_judged_why: dict[str, str] = msgspec.field(default_factory=dict)
    """Reason to a sentence about the first one."""
    differences: list[DecisionDifference] = msgspec.field(default_factory=list)
    """The first DIFFERENCES_KEPT of them, refusals too, in the order of the log."""
    refusals: RefusalCounts = msgspec.field(default_factory=RefusalCounts)
    folds: FoldCounts = msgspec.field(default_factory=FoldCounts)
    prefills: PrefillResult = msgspec.field(default_factory=PrefillResult)
    scale: ScaleResult | None = None
    """Decisions on the size of the fleet; None of a recording without a planner."""
    counts: DecisionCountResult = msgspec.field(default_factory=DecisionCountResult)
    """The decisions in the log, compared with the counts that their replicas state."""
    replicas: dict[ReplicaId, int] = msgspec.field(default_factory=dict)
    """Decisions per replica, in the range."""
    gaps: list[RecordingGap] = msgspec.field(default_factory=list)
    """All gaps of the whole recording."""
    seconds: float = 0.0
    """The time to make the decisions again: without the proof where that comes before, with it where processes share
    the work."""
    proof_seconds: float = 0.0
    digest: str = ""

    @property
    def holds(self) -> bool:
        """True if nothing differs, no chain is broken, and something was judged if there is anything to judge."""
        return self.sound and not self.none_judged

    @property
    def complete(self) -> bool:
        """True if it holds, everything was judged, chains are proved with the deployment's key, and the log has every
        decision that its replicas state."""
        has_all = not any(each.dropped or each.missing for each in self.counts.deficits)
        return self.holds and not any(self.unjudged.values()) and self.proof.origin and has_all

    @property
    def sound(self) -> bool:
        """True if nothing differs, no chain is broken, and no decision is missing of which no event says that it was
        dropped."""
        differ = (
            self.different
            or self.refusals.different
            or self.folds.different
            or self.prefills.differ
            or (self.scale is not None and self.scale.differ)
            or self.unaccounted
            or self.refusals.unaccounted
            or self.counts.unexplained
        )
        return self.proof.holds and not differ

    @property
    def none_judged(self) -> str:
        """`decision` if there are decisions and none was judged; of a range without any the same of its refusals, or
        else of its prefill verdicts. Empty if something was judged, or there is nothing to judge."""
        refusals, prefills = self.refusals, self.prefills
        counts = {
            "decision": (self.decisions, self.verified + self.different),
            "refusal": (refusals.total, refusals.verified + refusals.different),
            "prefill verdict": (prefills.total, prefills.verified + prefills.different),
        }
        return next(("" if judged else kind for kind, (total, judged) in counts.items() if total), "")

    @property
    def unjudged(self) -> dict[str, int]:
        """Kind to how many of it were not judged."""
        return {
            "decision": sum(self.not_judged.values()),
            "refusal": self.refusals.not_judged,
            "fold report": self.folds.not_judged,
            "prefill verdict": sum(self.prefills.not_judged.values()),
            "prefill job": self.prefills.jobs.not_judged + self.prefills.jobs.untold,
            "decision on the fleet": sum(self.scale.not_judged.values()) if self.scale is not None else 0,
            "judgement on the fleet": self.scale.judgements_not_judged if self.scale is not None else 0,
            "period of demand": self.scale.periods_not_judged if self.scale is not None else 0,
        }

    @property
    def unaccounted(self) -> int:
        """Decisions in the log without a verdict: 0, or there is a bug in verify."""
        return self.decisions - self.verified - self.different - sum(self.not_judged.values())

    @property
    def decisions_per_s(self) -> float:
        return self.decisions / self.seconds if self.seconds else 0.0


def verify(
    recording: Recording,
    start: int = 1,
    end: int | None = None,
    *,
    replicas: Iterable[ReplicaId] | None = None,
    jobs: int = 1,
    progress: Progress = lambda _done, _of: None,
    on_verdict: Callable[[Verdict], Any] = lambda _: None,
    judge: Judge | None = None,
) -> VerifyResult:
    """Every decision in a message of the routing stream from `start` up to `end` (not included), made again; those of
    `replicas` only, if they are given. `on_verdict` gets each verdict, in the order of the log. With a
    `judge`, the simulations beside a planner are made again, too.

    Some 200 us per decision where four replicas decide; `jobs` processes share the work, proof and all, and the result
    does not depend on their number; a log with a gap is played by one. Corrupt if the file is damaged. Refused if its
    chains were sealed with another key: then nothing in the file is proved.
    """
    began = time.perf_counter()
    only = None if replicas is None else set(replicas)
    if recording.excerpt is not None:
        return _verify_excerpt(recording, recording.excerpt, start, end, only, on_verdict)
    partition = Partition(recording, start, end, only, Gaps())
    total = partition.total

    def played(done: int) -> None:
        progress(min(done, total), total)

    shares, results = partition.shares(1 if has_holes(recording) else jobs, proves=True), list[_ShareResult]()
    if len(shares) > 1:
        proof, results = _prove_and_play(recording, shares, played)
    else:
        proof = _prove(recording)
    proven = time.perf_counter()
    by_replica = {replica: decisions for replica, decisions in sorted(partition.decisions.items()) if decisions}
    found = VerifyResult(proof=proof, gaps=[*proof.gaps.all, *proof.untold], decisions=total, replicas=by_replica)
    found.refusals.total = partition.refusals
    found.proof_seconds = 0.0 if results else proven - began
    counter = _VerdictCounter(found)
    whole = partition.shares(1)[0]._replace(gaps=proof.gaps)
    with collector_paused():
        for verdict in _decoded(results, counter) if results else _verdicts(recording, whole, counter, played):
            counter.add(verdict)
            on_verdict(verdict)
        progress(total, total)
    counter.finish()
    found.seconds = time.perf_counter() - (began if results else proven)
    found.prefills = verify_prefills(recording, start, end, replicas=only, on_finding=counter.add_line)
    if only is None:
        found.scale = verify_scale(recording, judge)
        for differs in found.scale.differences if found.scale is not None else ():
            counter.add_line(f"{differs.event}\t{differs.seq}\t{differs.term}\n")
    found.counts = proof.decision_counts.within(start, end, only)
    for each in found.counts.deficits:
        counter.add_line(f"{each.replica}\t{each.seq}\tdropped {each.dropped} missing {each.missing}\n")
    found.digest = counter.digest
    return found


def _verify_excerpt(
    recording: Recording,
    excerpt: Excerpt,
    start: int,
    end: int | None,
    only: set[ReplicaId] | None,
    on_verdict: Callable[[Verdict], Any],
) -> VerifyResult:
    """The decisions on its request, each made again on its own state. Fold reports, prefill verdicts and counts of
    decisions are not judged: what they are about is not all here."""
    began = time.perf_counter()
    proof = prove(recording)
    proven = time.perf_counter()
    found = VerifyResult(proof=proof, proof_seconds=proven - began)
    counter = _VerdictCounter(found)
    for each in excerpt.decisions:
        record = recording.archive.at(ROUTING, each.seq)
        if record is None or not start <= each.seq < (each.seq + 1 if end is None else end):
            continue
        replica = ReplicaId(owner(record.subject))
        if only is not None and replica not in only:
            continue
        judged = judge_at(recording, each.seq * PLACES + each.place, replica)
        if judged is None:
            continue
        if judged.verdict.refusal:
            found.refusals.total += 1
        else:
            found.decisions += 1
            found.replicas[replica] = found.replicas.get(replica, 0) + 1
        counter.add(judged.verdict)
        on_verdict(judged.verdict)
    counter.finish()
    found.seconds, found.digest = time.perf_counter() - proven, counter.digest
    return found


def _prove(recording: Recording) -> ChainProof:
    """The proof of all chains; Refused if they were sealed with another key."""
    proof = prove(recording)
    if proof.foreign:
        raise Refused(
            "hardly any message follows on the one before: the log was sealed again with another key than the "
            f"deployment's, so nothing in it is proved. The first: {proof.breaks[0].what}"
        )
    return proof


def _verdicts(
    recording: Recording, share: LogShare, counter: _VerdictCounter, progress: Callable[[int], None]
) -> Iterator[Verdict]:
    """All verdicts of the share in the order of the log, made here."""
    playback = share.playback(recording)
    yield from _reported(verdicts(playback), progress)
    counter.add_counts(_PlaybackCounts.of(playback))


def _decoded(results: list[_ShareResult], counter: _VerdictCounter) -> Iterator[Verdict]:
    """All verdicts of the shares in the order of the log, made by other processes."""
    for result in results:
        yield from _decode(result.verdicts)
        counter.add_counts(result.counts)


def _prove_and_play(
    recording: Recording, shares: list[LogShare], progress: Callable[[int], None]
) -> tuple[ChainProof, list[_ShareResult]]:
    """The proof of all chains, and the results of the shares, made in as many processes as there are shares. No results
    if the proof finds a gap: the shares were played as if there were none."""
    work = partial(_prove_or_play, recording.archive.path, recording.key)
    items = [None, *reversed(shares)]  # the first share follows the proof: the others have more to fold
    with parallel_results(work, items, len(shares), lambda done, _of: progress(done)) as found:
        proof = next(found)
        assert isinstance(proof, ChainProof)
        if proof.gaps.all or proof.gaps.replaced:
            return proof, []
        results = [each for each in found if isinstance(each, _ShareResult)]
        return proof, results[::-1]


def _prove_or_play(
    path: Path, key: DeploymentKey | None, share: LogShare | None, progress: Progress
) -> ChainProof | _ShareResult:
    """The proof, or the results of one share, made in a process of its own."""
    with Recording.open(path, key) as recording, collector_paused():
        if share is None:
            return _prove(recording)
        playback = share.playback(recording)
        encoded = _encode(list(_reported(verdicts(playback), lambda done: progress(done, done))))
        return _ShareResult(encoded, _PlaybackCounts.of(playback))


def _reported(found: Iterable[Verdict], progress: Callable[[int], None]) -> Iterator[Verdict]:
    """The verdicts; their number is reported on the way."""
    for number, verdict in enumerate(found):
        if number % PROGRESS_EVERY == 0:
            progress(number)
        yield verdict


class _PlaybackCounts(NamedTuple):
    """Findings of a playback beside its decisions."""

    skipped: Counter[str]
    skipped_refusals: Counter[str]
    folds: FoldCheck

    @staticmethod
    def of(playback: Playback) -> _PlaybackCounts:
        """Of a playback that has come to its end."""
        return _PlaybackCounts(playback.skipped, playback.skipped_refusals, playback.folds)


class _ShareResult(NamedTuple):
    """Results of one share."""

    verdicts: bytes
    """As `_encode` makes them of a list."""
    counts: _PlaybackCounts


class _VerdictCounter:
    """Adds verdicts to the result, and to the digest of all findings."""

    def __init__(self, found: VerifyResult) -> None:
        self._found = found
        self._digest = hashlib.blake2b(digest_size=16)
        self._not_judged: Counter[str] = Counter()
        self._skipped_refusals: Counter[str] = Counter()
        self._folds = FoldCheck()

    @property
    def digest(self) -> str:
        """Of all lines so far."""
        return self._digest.hexdigest()

    def add_line(self, line: str) -> None:
        """One more finding in the digest."""
        self._digest.update(line.encode())

    def add(self, it: Verdict) -> None:
        """One more verdict."""
        found = self._found
        self.add_line(f"{it.request}\t{it.attempt}\t{it.recorded}\t{it.recomputed}\t{it.verdict} {it.reason}\n")
        if it.difference is not None and len(found.differences) < DIFFERENCES_KEPT:
            found.differences.append(it.difference)
        if it.refusal:
            refusals = found.refusals
            refusals.verified += it.verdict == VERIFIED
            refusals.different += it.verdict == DIFFERENT
            refusals.not_judged += it.verdict == NOT_JUDGED
            return
        found.verified += it.verdict == VERIFIED
        found.different += it.verdict == DIFFERENT
        if it.verdict == NOT_JUDGED:
            self._not_judged[it.reason] += 1
            found.not_judged_why.setdefault(it.reason, it.why)

    def add_counts(self, counts: _PlaybackCounts) -> None:
        """One more share is played."""
        self._not_judged.update(counts.skipped)
        self._skipped_refusals.update(counts.skipped_refusals)
        self._folds.add(counts.folds)

    def finish(self) -> None:
        """The result has the counts of all shares."""
        found, folds = self._found, self._folds
        found.not_judged = {reason: number for reason, number in sorted(self._not_judged.items()) if number}
        found.refusals.skipped = {reason: number for reason, number in sorted(self._skipped_refusals.items()) if number}
        found.refusals.not_judged += self._skipped_refusals.total()
        found.folds = FoldCounts(
            compared=folds.compared,
            different=folds.different,
            not_judged=folds.not_judged.total(),
            not_judged_by=dict(sorted(folds.not_judged.items())),
            unreported=folds.unreported,
            differences=folds.differences,
        )


_encode = msgspec.msgpack.Encoder().encode  # a fifth of the price of pickling
_decode = msgspec.msgpack.Decoder(list[Verdict]).decode
