"""DigestExchange: the machine by which replicas prove that their folds are equal, and resolve mismatches.

1. Every REPORT_EVERY_MS a replica publishes the digests of its folds at cursors that all replicas pass, and compares
   the others' reports with its own (`actors.consistency.digest_comparison`). No replica asks another, or waits for it.
2. A difference is a mismatch (`actors.consistency.digest_mismatch`). It is resolved by folding the log anew beside the
   fold that serves, under a claim, so one replica at a time. A replica with a different fold was wrong: it goes on with
   the new fold, and publishes that.
3. The mismatch is resolved one step after the claim was granted: by then the verdict has been read that another
   replica published just before it released the claim.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from actors.consistency.digest_checkpoints import DigestCheckpoints
from actors.consistency.digest_comparison import DigestComparison, DigestDifference, FoldComparison, compare_folds
from actors.consistency.digest_mismatch import DigestMismatch, DigestMismatches
from core.events import DivergenceFound, ReplicaReported
from core.ids import ReplicaId, StreamName, StreamSeq
from core.machine import Tick
from projections.folds.state import State

STEP_EVERY_US = 1_000_000
"""Between looks at what is due."""
REPORT_EVERY_MS = 5_000
REBUILD_EVERY_MS = 3_600_000
"""A fold of everything costs a core for seconds: a replica that errs again and again must not do little else."""
RETRY_MS = 60_000
"""Between tries that did not come to an end."""
CLAIM_WAIT_MS = 60_000
"""A mismatch that waited for the registry for so long is resolved without a claim."""
REPLACED, CONFIRMED = "replaced", "confirmed"
"""Verdicts: our fold was wrong and another took its place; our fold is what the log gives."""

_logger = logging.getLogger(__name__)


# --- events --------------------------------------------------------------------------------------------------------


class ReportRead(NamedTuple):
    """Another replica's report was read in the log."""

    replica: ReplicaId
    report: ReplicaReported


class VerdictRead(NamedTuple):
    """Another replica's verdict was read in the log."""

    replica: ReplicaId
    verdict: DivergenceFound


class CheckpointPassed(NamedTuple):
    """The state has folded a message with a sequence that is a multiple of CHECKPOINT_EVERY."""

    stream: StreamName
    seq: StreamSeq


class FoldReplaced(NamedTuple):
    """Another fold took the place of the one that served, for this machine's or for another reason."""


class ClaimAnswered(NamedTuple):
    """The claim was granted or refused; None: the registry is away."""

    granted: bool | None


class FoldRebuilt(NamedTuple):
    """The log was folded anew beside the fold that serves."""

    state: State


class ResolutionFailed(NamedTuple):
    """A command could not be executed."""


DigestEvent: TypeAlias = (
    ReportRead | VerdictRead | CheckpointPassed | FoldReplaced | ClaimAnswered | FoldRebuilt | ResolutionFailed
)


# --- commands ------------------------------------------------------------------------------------------------------


class PublishDigests(NamedTuple):
    """The event goes to the log: a report or a verdict."""

    event: ReplicaReported | DivergenceFound


class TakeClaim(NamedTuple):
    """Answered by ClaimAnswered."""


class ReleaseClaim(NamedTuple):
    """Another replica may have the claim."""


class RebuildFold(NamedTuple):
    """Fold the log anew beside the fold that serves; answered by FoldRebuilt."""


class ReplaceFold(NamedTuple):
    """Fold the log anew and let that serve; answered by FoldReplaced."""

    reason: str


DigestCommand: TypeAlias = PublishDigests | TakeClaim | ReleaseClaim | RebuildFold | ReplaceFold


# --- the machine ---------------------------------------------------------------------------------------------------


class _Phase(Enum):
    """Phases of the resolution of a mismatch."""

    IDLE = "idle"
    CLAIMING = "claiming"
    CLAIMED = "claimed"
    REBUILDING = "folding anew"
    REPLACING = "replacing"
    """The fold that serves is known to be wrong, and may be another at any moment."""


class DigestExchange:
    """One replica's part in the exchange. It reads `state`; the owner feeds it only events of other replicas."""

    def __init__(self, state: State, first_report_us: int) -> None:
        self.reports_published = 0
        self.rebuilt = 0
        """Counts folds of this replica that were wrong and were replaced."""
        self.mismatches = DigestMismatches()
        self._state = state
        self._checkpoints = DigestCheckpoints(state)
        self._comparison = DigestComparison(state, self._checkpoints)
        self._report_due_us = self._step_due_us = first_report_us
        self._phase = _Phase.IDLE
        self._resolving: DigestMismatch | None = None
        """The mismatch for which the claim was taken or the log is folded."""
        self._wrong: FoldComparison | None = None
        """While REPLACING: where our fold was wrong."""
        self._not_before_ms: int | None = None
        self._is_held_back = False
        """True once the log has that a mismatch waits for `_not_before_ms`."""

    def __repr__(self) -> str:
        return f"<DigestExchange {self._comparison!r}, {self.mismatches!r}, {self._phase.value}>"

    @property
    def due_us(self) -> int:
        """When the next report or the next look at mismatches is due."""
        return min(self._report_due_us, self._step_due_us)

    def describe(self, now_ms: int) -> dict[str, Any]:
        """Facts for `/state`; counters since the start, times in milliseconds."""
        comparison, mismatches = self._comparison, self.mismatches
        return {
            "reports_said": self.reports_published,
            "reports_heard": comparison.reports,
            "points_compared": comparison.compared,
            "points_not_comparable": comparison.not_comparable,
            "reports_of_other_versions": comparison.other_versions,
            "divergences": mismatches.found,
            "histories_differed": mismatches.of_history,
            "rebuilt": self.rebuilt,
            "unexplained": mismatches.unexplained,
            "disputed": {mismatch.stream: mismatch.seq for mismatch in mismatches.all()},
            "agreed": comparison.agreed(now_ms),
        }

    def step(self, event: DigestEvent | Tick, now_us: int) -> list[DigestCommand]:
        """The next commands, in order."""
        now_ms = now_us // 1000
        match event:
            case Tick():
                return self._tick(now_us) if now_us >= self.due_us else []
            case CheckpointPassed(stream, seq):
                self._checkpoints.passed(stream, seq)
                self._differ(self._comparison.catch_up(now_ms), now_ms)
            case ReportRead(replica, report):
                self._on_report(replica, report, now_ms)
            case VerdictRead(replica, verdict):
                self._on_verdict(replica, verdict)
            case FoldReplaced():
                return self._on_replaced(now_ms)
            case ClaimAnswered(granted):
                self._on_claim_answer(granted, now_ms)
            case FoldRebuilt(state):
                return self._on_rebuilt(state, now_ms)
            case ResolutionFailed():
                return self._release()
        return []

    # --- the log -----------------------------------------------------------------------------------------------

    def _on_report(self, replica: ReplicaId, report: ReplicaReported, now_ms: int) -> None:
        # pending points first: of two comparisons with a replica the later one must be of the later report
        self._differ(self._comparison.catch_up(now_ms), now_ms)
        self._differ(self._comparison.on_report(replica, report, now_ms), now_ms)
        self._withdraw_accusation(replica)

    def _differ(self, differences: list[DigestDifference], now_ms: int) -> None:
        for difference in differences:
            if self.mismatches.differ(difference, now_ms):
                _logger.error(
                    "replica %s had %s at %s:%d where we had %016x",
                    difference.replica,
                    "another message" if difference.of_history else f"{difference.reported.digest:016x}",
                    difference.stream,
                    difference.reported.seq,
                    difference.ours.digest,
                    extra={"replica": difference.replica},
                )

    def _withdraw_accusation(self, replica: ReplicaId) -> None:
        """A replica that agrees again is no accuser; if it should have published why, the mismatch is unexplained."""
        for mismatch in self.mismatches.all():
            vote = self._comparison.votes.get(mismatch.stream, {}).get(replica)
            if vote is None or not vote.agrees or replica not in mismatch.accusers:
                continue
            if mismatch.confirmed_ms is not None and not mismatch.unexplained:
                self._cannot_explain(mismatch)
            self.mismatches.agree(mismatch.stream, replica)

    def _on_verdict(self, replica: ReplicaId, event: DivergenceFound) -> None:
        if event.verdict == REPLACED:
            _logger.warning("replica %s was wrong at %s:%d and has a new fold", replica, event.stream, event.seq)
            self._comparison.forget(replica)
            self.mismatches.replaced(replica)
        else:
            self.mismatches.confirmed(StreamName(event.stream), replica)

    # --- due work ----------------------------------------------------------------------------------------------

    def _tick(self, now_us: int) -> list[DigestCommand]:
        now_ms = now_us // 1000
        self._step_due_us = now_us + STEP_EVERY_US
        self._differ(self._comparison.catch_up(now_ms), now_ms)
        commands: list[DigestCommand] = []
        if now_us >= self._report_due_us:
            self._report_due_us = now_us + REPORT_EVERY_MS * 1000
            commands += self._report()
        self._close_old(now_ms)
        return commands + self._resolve(now_ms)

    def _report(self) -> list[DigestCommand]:
        if self._phase is _Phase.REPLACING:
            return []  # others must read that we were wrong before they read that we are not
        report = self._checkpoints.report()
        if report is None:
            return []
        self.reports_published += 1
        return [PublishDigests(report)]

    def _close_old(self, now_ms: int) -> None:
        for mismatch in self.mismatches.all():
            if mismatch.inexplicable(now_ms):
                self._cannot_explain(mismatch)
            if mismatch.confirmed_ms is not None and now_ms - mismatch.confirmed_ms >= REBUILD_EVERY_MS:
                self.mismatches.over(mismatch)  # a replica that differs still opens it again

    def _cannot_explain(self, mismatch: DigestMismatch) -> None:
        mismatch.unexplained = True
        self.mismatches.unexplained += 1
        _logger.error(
            "replica %s had another fold at %s:%d, our fold is what the log gives, and it does not say that it was "
            "wrong: the log or the code is at fault; keep the data folders of both",
            mismatch.first,
            mismatch.stream,
            mismatch.seq,
        )

    # --- resolution --------------------------------------------------------------------------------------------

    def _resolve(self, now_ms: int) -> list[DigestCommand]:
        """The next command for the mismatch that is ours to resolve now, if any."""
        if self._phase not in (_Phase.IDLE, _Phase.CLAIMED):
            return []
        camps = self._comparison.camps
        ready = (each for each in self.mismatches.all() if each.ready(camps(each.stream, now_ms), now_ms))
        mismatch = self._resolving = next(ready, None)
        if mismatch is None:
            return self._release()
        if self._not_before_ms is not None and now_ms < self._not_before_ms:
            if not self._is_held_back:
                self._is_held_back = True
                _logger.error("not resolved so soon again, the doubted fold serves meanwhile: %s", mismatch)
            return []
        if self._phase is _Phase.IDLE:
            self._phase = _Phase.CLAIMING
            return [TakeClaim()]
        self._phase = _Phase.REBUILDING
        self._is_held_back = False
        self._not_before_ms = now_ms + RETRY_MS
        _logger.warning("folding the log anew: %s", mismatch)
        return [RebuildFold()]

    def _on_claim_answer(self, granted: bool | None, now_ms: int) -> None:
        assert self._resolving is not None
        if granted is None:
            granted = now_ms - self._resolving.opened_ms >= CLAIM_WAIT_MS
        self._phase = _Phase.CLAIMED if granted else _Phase.IDLE

    def _on_rebuilt(self, rebuilt: State, now_ms: int) -> list[DigestCommand]:
        mismatch = self._resolving
        assert mismatch is not None
        comparisons = compare_folds(self._state, rebuilt)
        disputed = comparisons.get(mismatch.stream)
        if disputed is None:
            _logger.warning("%s is not complete, or moved on too fast to be compared: trying again", mismatch.stream)
            return self._release()
        self._wrong = next((each for each in (disputed, *comparisons.values()) if each.wrong), None)
        if self._wrong is not None:
            self._phase = _Phase.REPLACING
            return [ReplaceFold(f"wrong at {self._wrong.stream}:{self._wrong.seq}")]
        self._not_before_ms = now_ms + REBUILD_EVERY_MS
        if not self.mismatches.is_open(mismatch):
            return self._release()  # withdrawn while we folded anew
        mismatch.confirmed_ms = now_ms
        _logger.warning("our fold is what the log gives at %s:%d", disputed.stream, disputed.seq)
        return [PublishDigests(_verdict(disputed, mismatch.first, CONFIRMED)), *self._release()]

    def _on_replaced(self, now_ms: int) -> list[DigestCommand]:
        self.mismatches.all_over()
        self._comparison.forget_votes()
        if self._phase is not _Phase.REPLACING:
            return []
        assert self._resolving is not None
        assert self._wrong is not None
        self.rebuilt += 1
        self._not_before_ms = now_ms + REBUILD_EVERY_MS
        _logger.error("our fold was wrong at %s:%d: a new one serves", self._wrong.stream, self._wrong.seq)
        return [PublishDigests(_verdict(self._wrong, self._resolving.first, REPLACED)), *self._release()]

    def _release(self) -> list[DigestCommand]:
        """Nothing is being resolved; the claim is released if there is one."""
        was, self._phase = self._phase, _Phase.IDLE
        return [] if was is _Phase.IDLE else [ReleaseClaim()]


def _verdict(found: FoldComparison, other: ReplicaId, verdict: str) -> DivergenceFound:
    return DivergenceFound(
        stream=found.stream,
        epoch=found.epoch,
        seq=found.seq,
        digest=found.served,
        refolded=found.rebuilt,
        other=other,
        verdict=verdict,
    )
