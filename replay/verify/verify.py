"""Verify: every decision of a recording made again; all must come out as they were recorded, bit for bit.

1. A decision that comes out equal is verified, whatever the recording lacks. One that comes out otherwise is a
   difference, unless the recording is known not to have what it rested on: then it is not judged, with the reason.
   Nothing is passed over: what was routed is verified, different or not judged.
2. Requests that were refused are asked again too, and counted apart.
3. Verdicts of workers on where to compute a prompt are made again too, and jobs counted
   (`replay.verify.prefill_decisions`).
4. The digest is of every decision and its verdict, in the order of the log, and then of every verdict on a prompt:
   equal digests mean equal findings.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from core.errors import Refused
from core.ids import ReplicaId
from replay.playback.fold_reports import FoldDifference
from replay.recording.gaps import RecordingGap
from replay.recording.recording import Recording
from replay.verify.chain_proof import ChainProof, prove
from replay.verify.judge import DIFFERENT, NOT_JUDGED, VERIFIED, DecisionDifference, Verdict
from replay.verify.partition import Partition
from replay.verify.prefill_decisions import PrefillResult, verify_prefills
from replay.verify.process_pool import VerifyPool, collector_paused

DIFFERENCES_KEPT = 1000
"""The first of them are told, all are counted."""
PROGRESS_EVERY = 500
"""Decisions between two words on how far it is."""

Progress = Callable[[int, int], None]
"""Told decisions made again, and how many there are."""


class RefusalCounts(msgspec.Struct, kw_only=True):
    """Requests that nobody could serve."""

    verified: int = 0
    different: int = 0
    not_judged: int = 0


class FoldCounts(msgspec.Struct, kw_only=True):
    """What replicas said of their own folds, against what the log gives."""

    compared: int = 0
    different: int = 0
    not_judged: int = 0
    differences: list[FoldDifference] = msgspec.field(default_factory=list)


class VerifyResult(msgspec.Struct, kw_only=True):
    """What was found."""

    proof: ChainProof
    decisions: int = 0
    """All that were routed in the range."""
    verified: int = 0
    different: int = 0
    not_judged: dict[str, int] = msgspec.field(default_factory=dict)
    """Reason to how many; see `replay.verify.judge.REASONS` and `Playback.skipped`."""
    not_judged_why: dict[str, str] = msgspec.field(default_factory=dict)
    """Reason to a sentence about the first one."""
    differences: list[DecisionDifference] = msgspec.field(default_factory=list)
    """The first DIFFERENCES_KEPT of them, refusals too, in the order of the log."""
    refusals: RefusalCounts = msgspec.field(default_factory=RefusalCounts)
    folds: FoldCounts = msgspec.field(default_factory=FoldCounts)
    prefills: PrefillResult = msgspec.field(default_factory=PrefillResult)
    replicas: dict[ReplicaId, int] = msgspec.field(default_factory=dict)
    """How many decisions each made, in the range."""
    gaps: list[RecordingGap] = msgspec.field(default_factory=list)
    """All that the whole recording lacks."""
    seconds: float = 0.0
    """What it took to make the decisions again, the proof not counted."""
    proof_seconds: float = 0.0
    digest: str = ""

    @property
    def holds(self) -> bool:
        """Whether nothing differs and no chain is broken."""
        differ = (
            self.different
            or self.refusals.different
            or self.folds.different
            or self.prefills.differ
            or self.unaccounted
        )
        return self.proof.holds and not differ

    @property
    def unaccounted(self) -> int:
        """Decisions that are in the log and came to no verdict: 0, or there is a bug here."""
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
    tell: Callable[[Verdict], Any] = lambda _: None,
) -> VerifyResult:
    """Every decision whose message stands in the routing stream from `start` up to `end` (not included) made again;
    of these replicas only, if they are given. `tell` hears of each verdict, in the order of the log.

    Some 200 us per decision where four replicas decide; `jobs` processes share the work. Corrupt if the file is
    damaged; Refused if its chains were sealed with another key, so that nothing in it is known to have been said.
    """
    began = time.perf_counter()
    proof = prove(recording)
    if proof.foreign:
        raise Refused(
            "hardly any message follows on the one before: the log was sealed again with another key than the "
            f"deployment's, so nothing in it is proved. The first: {proof.breaks[0].what}"
        )
    proven = time.perf_counter()
    only = None if replicas is None else set(replicas)
    work = Partition(recording, start, end, only, proof.gaps)
    decided = {replica: count for replica, count in sorted(work.owners.items()) if count}
    found = VerifyResult(proof=proof, gaps=[*proof.gaps.all, *proof.untold], decisions=work.total, replicas=decided)
    found.proof_seconds = proven - began
    tally = _VerdictCounter(found, progress, tell)
    with collector_paused():
        tally.take(VerifyPool(work, jobs))
    found.seconds = time.perf_counter() - proven
    found.prefills = verify_prefills(recording, start, end, replicas=only, tell=tally.add)
    found.digest = tally.digest
    return found


class _VerdictCounter:
    """Counts verdicts as they come."""

    def __init__(self, found: VerifyResult, progress: Progress, tell: Callable[[Verdict], Any]) -> None:
        self._found = found
        self._progress = progress
        self._tell = tell
        self._digest = hashlib.blake2b(digest_size=16)
        self._not_judged: Counter[str] = Counter()

    def take(self, playing: VerifyPool) -> None:
        found = self._found
        for number, verdict in enumerate(playing.verdicts()):
            if number % PROGRESS_EVERY == 0:
                self._progress(number, found.decisions)
            self._note(verdict)
            self._tell(verdict)
        self._progress(found.decisions, found.decisions)
        self._not_judged.update(playing.skipped)
        found.not_judged = {reason: count for reason, count in sorted(self._not_judged.items()) if count}
        if playing.unreadable and found.unaccounted > 0:
            found.not_judged["unreadable"] = found.unaccounted
        folds = playing.folds
        found.folds = FoldCounts(
            compared=folds.compared,
            different=folds.different,
            not_judged=folds.not_judged,
            differences=folds.differences,
        )

    def add(self, line: str) -> None:
        """A line more under the digest."""
        self._digest.update(line.encode())

    @property
    def digest(self) -> str:
        """Of all that was noted."""
        return self._digest.hexdigest()

    def _note(self, it: Verdict) -> None:
        found = self._found
        said = f"{it.request}\t{it.attempt}\t{it.recorded}\t{it.recomputed}\t{it.verdict} {it.reason}\n"
        self.add(said)
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
