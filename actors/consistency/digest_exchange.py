"""DigestExchange: replicas prove to each other that their folds are equal, and resolve mismatches.

1. Every REPORT_EVERY_MS a replica publishes the digests of its folds at cursors that others pass too, and compares
   the others' reports with its own (DigestComparison). Nothing is asked for and nothing is waited for.
2. A difference is a mismatch (`actors.consistency.digest_mismatch`). It is resolved by folding the log anew beside the
   fold that serves (`actors.consistency.mismatch_resolution`): a replica whose fold differs from that was wrong, goes
   on with a new fold, and publishes that.
3. `step` does what is due now and never waits for a fold; the loop only calls it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

from actors.consistency.digest_checkpoints import DigestCheckpoints
from actors.consistency.digest_mismatch import DigestDifference, DigestMismatch, DigestMismatches, ReportedPoint
from actors.consistency.mismatch_resolution import REFOLD_EVERY_MS, MismatchResolution, RebuildComparison, drift
from core.clock import Clock
from core.codec import DIGEST_BYTES
from core.events import DivergenceFound, Event, Points, ReplicaReported
from core.ids import COLUMN_WIDTH, ReplicaId, StreamName, StreamSeq
from projections.digest import FOLD_VERSION
from projections.folds.state import State
from streams.registry import Registry

PENDING_MAX = 1024
"""Points that we have not reached yet; the oldest goes first."""
LIVE_MS = 15_000
"""Three reports' time: a replica that said nothing for so long has no vote."""
REMEMBERED_MS = 600_000
"""How long the agreement with a replica that is silent is still shown …"""
REPLICAS_MAX = 256
"""… and of how many per stream at most."""


class PeerVote(NamedTuple):
    """What the newest comparison with a replica gave."""

    seq: StreamSeq
    agrees: bool
    at_ms: int
    """By our own clock."""


class DigestComparison:
    """Compares reported points with our own, now or when we reach them, and knows which replicas agree."""

    def __init__(self, state: State, checkpoints: DigestCheckpoints) -> None:
        self.heard = 0
        """Reports of others."""
        self.compared = 0
        self.not_comparable = 0
        """Points too long ago, of another epoch, or at which a source was unknown here."""
        self.other_versions = 0
        """Reports of folds that are not to be compared with ours."""
        self.votes: dict[StreamName, dict[ReplicaId, PeerVote]] = {}
        self._state = state
        self._checkpoints = checkpoints
        self._pending: OrderedDict[tuple[ReplicaId, StreamName, StreamSeq], ReportedPoint] = OrderedDict()

    def __repr__(self) -> str:
        return f"<DigestComparison of {self.compared} points, {len(self._pending)} not reached yet>"

    def on_report(self, replica: ReplicaId, event: ReplicaReported, now_ms: int) -> list[DigestDifference]:
        """Every point that we have reached was compared; the others wait, at most PENDING_MAX of all replicas."""
        self.heard += 1
        if event.fold_version != FOLD_VERSION:
            self.other_versions += 1
            return []
        reported = ((StreamName(stream), point) for stream, points in event.points.items() for point in _rows(points))
        found = (self._compare(replica, stream, point, now_ms) for stream, point in reported)
        return [difference for difference in found if difference is not None]

    def catch_up(self, now_ms: int) -> list[DigestDifference]:
        """The points that waited for us and that we have reached were compared."""
        found = []
        for (replica, stream, seq), reported in list(self._pending.items()):
            position = self._state.cursor.get(stream)
            if position is None or seq <= position.seq:
                del self._pending[replica, stream, seq]
                found.append(self._compare(replica, stream, reported, now_ms))
        return [difference for difference in found if difference is not None]

    def forget(self, replica: ReplicaId) -> None:
        """What it said before counts no more: its fold is another now."""
        for votes in self.votes.values():
            votes.pop(replica, None)
        for key in [key for key in self._pending if key[0] == replica]:
            del self._pending[key]

    def forget_votes(self) -> None:
        """What others said of our fold counts no more: it is another now."""
        self.votes.clear()

    def camps(self, stream: StreamName, now_ms: int) -> tuple[int, int]:
        """How many live replicas have this stream's fold as we do, ourselves included, and how many otherwise."""
        live = [vote for vote in self.votes.get(stream, {}).values() if now_ms - vote.at_ms <= LIVE_MS]
        agreeing = sum(vote.agrees for vote in live)
        return 1 + agreeing, len(live) - agreeing

    def agreed(self, now_ms: int) -> dict[str, dict[str, dict[str, int]]]:
        """By replica and stream: the last point at which it agreed, and how long ago that was found."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for stream, votes in sorted(self.votes.items()):
            for replica, vote in sorted(votes.items()):
                if vote.agrees:
                    found.setdefault(replica, {})[stream] = {"seq": vote.seq, "ms_ago": now_ms - vote.at_ms}
        return found

    def _compare(
        self, replica: ReplicaId, stream: StreamName, reported: ReportedPoint, now_ms: int
    ) -> DigestDifference | None:
        position = self._state.cursor.get(stream)
        if position is None or position.epoch != reported.epoch:
            self.not_comparable += 1
            return None
        if reported.seq > position.seq:
            self._wait_for(replica, stream, reported)
            return None
        ours = self._checkpoints.at(stream, reported.seq)
        if ours is None or not ours.complete:
            self.not_comparable += 1
            return None
        self.compared += 1
        agrees = (reported.digest, reported.head) == (ours.digest, ours.head)
        self._vote(replica, stream, PeerVote(reported.seq, agrees, now_ms))
        return None if agrees else DigestDifference(replica, stream, reported, ours)

    def _wait_for(self, replica: ReplicaId, stream: StreamName, reported: ReportedPoint) -> None:
        self._pending[replica, stream, reported.seq] = reported
        if len(self._pending) > PENDING_MAX:
            self._pending.popitem(last=False)
            self.not_comparable += 1

    def _vote(self, replica: ReplicaId, stream: StreamName, vote: PeerVote) -> None:
        votes = self.votes.setdefault(stream, {})
        votes.pop(replica, None)  # put in again at the end: the order is of age
        votes[replica] = vote
        oldest = next(iter(votes))
        if len(votes) > REPLICAS_MAX or vote.at_ms - votes[oldest].at_ms > REMEMBERED_MS:
            del votes[oldest]


def _rows(points: Points) -> Iterator[ReportedPoint]:
    for i, seq in enumerate(points.seqs):
        digest = int.from_bytes(points.digests[i * COLUMN_WIDTH : (i + 1) * COLUMN_WIDTH], "little")
        yield ReportedPoint(
            points.epoch, StreamSeq(seq), digest, points.heads[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES]
        )


STEP_EVERY_S = 1.0
REPORT_EVERY_MS = 5_000
REPLACED, CONFIRMED = "replaced", "confirmed"

_logger = logging.getLogger(__name__)


class DigestExchange:
    """One replica's part in the exchange."""

    def __init__(
        self,
        state: State,
        publish: Callable[[Event], None],
        me: Callable[[], ReplicaId],
        clock: Clock,
        registry: Registry,
        *,
        refold: Callable[[], Awaitable[State]],
        rebuild: Callable[[str], Awaitable[object]],
    ) -> None:
        """`refold` folds the log anew beside the state that serves; `rebuild` does so and takes the state's place."""
        self.reports_published = 0
        self.rebuilt = 0
        """How often our fold was wrong and another took its place."""
        self.mismatches = DigestMismatches()
        self._state = state
        self._publish = publish
        self._me = me
        self._clock = clock
        self._checkpoints = DigestCheckpoints(state)
        self._comparison = DigestComparison(state, self._checkpoints)
        self._reported_ms: int | None = None
        self._resolution = MismatchResolution(
            state,
            me,
            clock,
            registry,
            refold=refold,
            rebuild=rebuild,
            on_replaced=self._on_replaced,
            on_confirmed=self._on_confirmed,
        )

    def __repr__(self) -> str:
        return f"<DigestExchange {self._comparison!r}, {self.mismatches!r}, {self._resolution!r}>"

    def describe(self) -> dict[str, Any]:
        """Facts for `/state`; counters since the start, times in milliseconds."""
        comparison, mismatches = self._comparison, self.mismatches
        return {
            "reports_said": self.reports_published,
            "reports_heard": comparison.heard,
            "points_compared": comparison.compared,
            "points_not_comparable": comparison.not_comparable,
            "reports_of_other_versions": comparison.other_versions,
            "divergences": mismatches.found,
            "histories_differed": mismatches.of_history,
            "rebuilt": self.rebuilt,
            "unexplained": mismatches.unexplained,
            "disputed": {mismatch.stream: mismatch.seq for mismatch in mismatches.all()},
            "agreed": comparison.agreed(self._clock.monotonic_ms()),
        }

    # --- what the log tells ------------------------------------------------------------------------------------

    def passed(self, stream: StreamName, seq: StreamSeq) -> None:
        """To be called when the state has folded a message whose sequence is a multiple of MILESTONE_EVERY."""
        self._checkpoints.passed(stream, seq)
        self._differ(self._comparison.catch_up(self._clock.monotonic_ms()))

    def on_report(self, replica: ReplicaId, event: ReplicaReported | DivergenceFound) -> None:
        """To be called when the state has folded a message with this event; our own change nothing."""
        if replica == self._me():
            return
        if isinstance(event, DivergenceFound):
            self._on_verdict(replica, event)
            return
        now = self._clock.monotonic_ms()
        # first what waited: of two comparisons with a replica the later one must be of the later report
        self._differ(self._comparison.catch_up(now))
        self._differ(self._comparison.on_report(replica, event, now))
        self._withdraw_accusation(replica)

    def became(self) -> None:
        """To be called when the state became another: what was said of the one before counts no more."""
        self.mismatches.all_over()
        self._comparison.forget_votes()

    def _differ(self, differences: list[DigestDifference]) -> None:
        for difference in differences:
            if self.mismatches.differ(difference, self._clock.monotonic_ms()):
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
        """Who agrees again is no accuser; if it should have said why, that is said."""
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

    # --- what is due -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Does what is due, for ever."""
        while True:
            try:
                await self.step()
            except Exception:  # whatever it was, reports must go on: they are what others know us by
                _logger.exception("a step of the comparison between replicas failed, trying again")
            await asyncio.sleep(STEP_EVERY_S)

    async def step(self) -> None:
        """What is due now was done, or begun. It waits for the registry at most, and only while there is a dispute."""
        now = self._clock.monotonic_ms()
        self._differ(self._comparison.catch_up(now))
        if self._reported_ms is None or now - self._reported_ms >= REPORT_EVERY_MS:
            self._reported_ms = now
            self._report(now)
        self._close_old(now)
        if not self._resolution.busy:
            ready = (d for d in self.mismatches.all() if d.ready(self._comparison.camps(d.stream, now), now))
            await self._resolution.step(next(ready, None))

    async def settled(self) -> None:
        """What is being folded anew, if anything, has come to an end."""
        await self._resolution.settled()

    async def stop(self) -> None:
        """Nothing is folded anew any more, and another may; bounded by the registry's own bound."""
        await self._resolution.stop()

    def _report(self, now: int) -> None:
        if self._resolution.replacing:
            return  # others must hear that we were wrong before they hear that we are not
        self._check_own_fold(now)
        report = self._checkpoints.report()
        if report is not None:
            self._publish(report)
            self.reports_published += 1

    def _check_own_fold(self, now: int) -> None:
        for stream in list(self._state.cursor):
            if self._state.projection(stream).incomplete or not drift(self._state, stream):
                continue
            if self.mismatches.differ_from_ourselves(stream, self._state.cursor[stream].seq, self._me(), now):
                _logger.error("the fold of %s is not what was folded: it was changed behind our back", stream)

    def _close_old(self, now: int) -> None:
        for mismatch in self.mismatches.all():
            if mismatch.inexplicable(now):
                self._cannot_explain(mismatch)
            if mismatch.confirmed_ms is not None and now - mismatch.confirmed_ms >= REFOLD_EVERY_MS:
                self.mismatches.over(mismatch)  # who still differs says so again

    def _cannot_explain(self, mismatch: DigestMismatch) -> None:
        mismatch.unexplained = True
        self.mismatches.unexplained += 1
        _logger.error(
            "replica %s had something else at %s:%d, our fold is what the log gives, and it does not say that it was "
            "wrong: the log or the code is at fault; keep the data folders of both",
            mismatch.first,
            mismatch.stream,
            mismatch.seq,
        )

    def _on_replaced(self, mismatch: DigestMismatch, finding: RebuildComparison) -> None:
        self.rebuilt += 1
        self._publish(_found(finding, mismatch.first, REPLACED))
        self.became()
        _logger.error("our fold was wrong at %s:%d: a new one serves", finding.stream, finding.seq)

    def _on_confirmed(self, mismatch: DigestMismatch, finding: RebuildComparison) -> None:
        if not self.mismatches.is_open(mismatch):
            return  # taken back while we folded anew
        self._publish(_found(finding, mismatch.first, CONFIRMED))
        _logger.warning("our fold is what the log gives at %s:%d", finding.stream, finding.seq)
        if mismatch.own:
            self.mismatches.over(mismatch)
        else:
            mismatch.confirmed_ms = self._clock.monotonic_ms()


def _found(finding: RebuildComparison, other: ReplicaId, verdict: str) -> DivergenceFound:
    return DivergenceFound(
        stream=finding.stream,
        epoch=finding.epoch,
        seq=finding.seq,
        digest=finding.served,
        refolded=finding.refolded,
        other=other,
        verdict=verdict,
    )
