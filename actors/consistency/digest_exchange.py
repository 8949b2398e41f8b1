"""Comparison: what other replicas say of their folds against what ours were at the same cursors.

Agreement: replicas that prove to each other that they are equal, and settle who was wrong when they are not.

1. Every REPORT_EVERY_MS a replica says in the log what its folds were at cursors that others pass too, and compares
   what the others say with its own. Nothing is asked for and nothing is waited for.
2. A difference is a dispute (`actors.consistency.digest_mismatch`). It is settled by folding the log anew beside the
   fold that serves (`actors.consistency.mismatch_resolution`): whoever differs from that was wrong, goes on with a new
   fold, and says so.
3. `step` does what is due now and never waits for a fold; the loop only calls it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

from actors.consistency.digest_checkpoints import DigestCheckpoints
from actors.consistency.digest_mismatch import DigestMismatch, DigestMismatches
from actors.consistency.mismatch_resolution import REFOLD_EVERY_MS, MismatchResolution, RefoldComparison, drift
from core.clock import Clock
from core.codec import DIGEST_BYTES
from core.events import DivergenceFound, Event, Points, ReplicaReported
from core.ids import COLUMN_WIDTH, ReplicaId, StreamName, StreamSeq
from projections.folds.digest import FOLD_VERSION
from projections.folds.state import DigestPoint, State
from streams.registry import Registry

PENDING_MAX = 1024
"""Points that we have not reached yet; the oldest goes first."""
LIVE_MS = 15_000
"""Three reports' time: a replica that said nothing for so long has no vote."""
REMEMBERED_MS = 600_000
"""How long the agreement with a replica that is silent is still shown …"""
REPLICAS_MAX = 256
"""… and of how many per stream at most."""


class ReportedPoint(NamedTuple):
    """One point as another replica had it."""

    epoch: int
    seq: StreamSeq
    digest: int
    head: bytes


class PeerVote(NamedTuple):
    """What the newest comparison with a replica gave."""

    seq: StreamSeq
    agrees: bool
    at_ms: int
    """By our own clock."""


class DigestDifference(NamedTuple):
    """Ours and another's fold were not the same after one message."""

    replica: ReplicaId
    stream: StreamName
    said: ReportedPoint
    ours: DigestPoint

    @property
    def of_history(self) -> bool:
        """Not even the message was: one of us has not noticed yet that the log's history was replaced."""
        return self.said.head != self.ours.head


class DigestComparison:
    """Compares whatever can be compared, now or when we get there, and knows who agrees with us."""

    def __init__(self, state: State, milestones: DigestCheckpoints) -> None:
        self.heard = 0
        """Reports of others."""
        self.compared = 0
        self.not_comparable = 0
        """Points too long ago, of another epoch, or at which a source was unknown here."""
        self.other_versions = 0
        """Reports of folds that are not to be compared with ours."""
        self.votes: dict[StreamName, dict[ReplicaId, PeerVote]] = {}
        self._state = state
        self._milestones = milestones
        self._pending: OrderedDict[tuple[ReplicaId, StreamName, StreamSeq], ReportedPoint] = OrderedDict()

    def __repr__(self) -> str:
        return f"<DigestComparison of {self.compared} points, {len(self._pending)} not reached yet>"

    def hear(self, replica: ReplicaId, event: ReplicaReported, now_ms: int) -> list[DigestDifference]:
        """Every point that we have reached was compared; the others wait, at most PENDING_MAX of all replicas."""
        self.heard += 1
        if event.fold_version != FOLD_VERSION:
            self.other_versions += 1
            return []
        said = ((StreamName(stream), point) for stream, points in event.points.items() for point in _rows(points))
        found = (self._take(replica, stream, point, now_ms) for stream, point in said)
        return [difference for difference in found if difference is not None]

    def catch_up(self, now_ms: int) -> list[DigestDifference]:
        """The points that waited for us and that we have reached were compared."""
        found = []
        for (replica, stream, seq), said in list(self._pending.items()):
            position = self._state.cursor.get(stream)
            if position is None or seq <= position.seq:
                del self._pending[replica, stream, seq]
                found.append(self._take(replica, stream, said, now_ms))
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

    def _take(
        self, replica: ReplicaId, stream: StreamName, said: ReportedPoint, now_ms: int
    ) -> DigestDifference | None:
        position = self._state.cursor.get(stream)
        if position is None or position.epoch != said.epoch:
            self.not_comparable += 1
            return None
        if said.seq > position.seq:
            self._wait_for(replica, stream, said)
            return None
        ours = self._milestones.at(stream, said.seq)
        if ours is None or not ours.complete:
            self.not_comparable += 1
            return None
        self.compared += 1
        agrees = (said.digest, said.head) == (ours.digest, ours.head)
        self._vote(replica, stream, PeerVote(said.seq, agrees, now_ms))
        return None if agrees else DigestDifference(replica, stream, said, ours)

    def _wait_for(self, replica: ReplicaId, stream: StreamName, said: ReportedPoint) -> None:
        self._pending[replica, stream, said.seq] = said
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
    """One replica's part in it."""

    def __init__(
        self,
        state: State,
        say: Callable[[Event], None],
        me: Callable[[], ReplicaId],
        clock: Clock,
        registry: Registry,
        *,
        refold: Callable[[], Awaitable[State]],
        rebuild: Callable[[str], Awaitable[object]],
    ) -> None:
        """`refold` folds the log anew beside the state that serves; `rebuild` does so and takes the state's place."""
        self.reports_said = 0
        self.rebuilt = 0
        """How often our fold was wrong and another took its place."""
        self.disputes = DigestMismatches()
        self._state = state
        self._say = say
        self._me = me
        self._clock = clock
        self._milestones = DigestCheckpoints(state)
        self._comparison = DigestComparison(state, self._milestones)
        self._reported_ms: int | None = None
        self._settlement = MismatchResolution(
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
        return f"<DigestExchange {self._comparison!r}, {self.disputes!r}, {self._settlement!r}>"

    def describe(self) -> dict[str, Any]:
        """Facts for `/state`; counters since the start, times in milliseconds."""
        comparison, disputes = self._comparison, self.disputes
        return {
            "reports_said": self.reports_said,
            "reports_heard": comparison.heard,
            "points_compared": comparison.compared,
            "points_not_comparable": comparison.not_comparable,
            "reports_of_other_versions": comparison.other_versions,
            "divergences": disputes.found,
            "histories_differed": disputes.of_history,
            "rebuilt": self.rebuilt,
            "unexplained": disputes.unexplained,
            "disputed": {dispute.stream: dispute.seq for dispute in disputes.all()},
            "agreed": comparison.agreed(self._clock.monotonic_ms()),
        }

    # --- what the log tells ------------------------------------------------------------------------------------

    def passed(self, stream: StreamName, seq: StreamSeq) -> None:
        """To be called when the state has folded a message whose sequence is a multiple of MILESTONE_EVERY."""
        self._milestones.passed(stream, seq)
        self._differ(self._comparison.catch_up(self._clock.monotonic_ms()))

    def hear(self, replica: ReplicaId, event: ReplicaReported | DivergenceFound) -> None:
        """To be called when the state has folded a message with this event; our own change nothing."""
        if replica == self._me():
            return
        if isinstance(event, DivergenceFound):
            self._hear_verdict(replica, event)
            return
        now = self._clock.monotonic_ms()
        # first what waited: of two comparisons with a replica the later one must be of the later report
        self._differ(self._comparison.catch_up(now))
        self._differ(self._comparison.hear(replica, event, now))
        self._take_back(replica)

    def became(self) -> None:
        """To be called when the state became another: what was said of the one before counts no more."""
        self.disputes.all_over()
        self._comparison.forget_votes()

    def _differ(self, differences: list[DigestDifference]) -> None:
        for difference in differences:
            if self.disputes.differ(difference, self._clock.monotonic_ms()):
                _logger.error(
                    "replica %s had %s at %s:%d where we had %016x",
                    difference.replica,
                    "another message" if difference.of_history else f"{difference.said.digest:016x}",
                    difference.stream,
                    difference.said.seq,
                    difference.ours.digest,
                    extra={"replica": difference.replica},
                )

    def _take_back(self, replica: ReplicaId) -> None:
        """Who agrees again is no accuser; if it should have said why, that is said."""
        for dispute in self.disputes.all():
            vote = self._comparison.votes.get(dispute.stream, {}).get(replica)
            if vote is None or not vote.agrees or replica not in dispute.accusers:
                continue
            if dispute.confirmed_ms is not None and not dispute.unexplained:
                self._cannot_explain(dispute)
            self.disputes.agree(dispute.stream, replica)

    def _hear_verdict(self, replica: ReplicaId, event: DivergenceFound) -> None:
        if event.verdict == REPLACED:
            _logger.warning("replica %s was wrong at %s:%d and has a new fold", replica, event.stream, event.seq)
            self._comparison.forget(replica)
            self.disputes.replaced(replica)
        else:
            self.disputes.confirmed(StreamName(event.stream), replica)

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
        if not self._settlement.busy:
            ready = (d for d in self.disputes.all() if d.ready(self._comparison.camps(d.stream, now), now))
            await self._settlement.step(next(ready, None))

    async def settled(self) -> None:
        """What is being folded anew, if anything, has come to an end."""
        await self._settlement.settled()

    async def stop(self) -> None:
        """Nothing is folded anew any more, and another may; bounded by the registry's own bound."""
        await self._settlement.stop()

    def _report(self, now: int) -> None:
        if self._settlement.replacing:
            return  # others must hear that we were wrong before they hear that we are not
        self._look_at_ourselves(now)
        report = self._milestones.report()
        if report is not None:
            self._say(report)
            self.reports_said += 1

    def _look_at_ourselves(self, now: int) -> None:
        for stream in list(self._state.cursor):
            if self._state.projection(stream).incomplete or not drift(self._state, stream):
                continue
            if self.disputes.differ_from_ourselves(stream, self._state.cursor[stream].seq, self._me(), now):
                _logger.error("the fold of %s is not what was folded: it was changed behind our back", stream)

    def _close_old(self, now: int) -> None:
        for dispute in self.disputes.all():
            if dispute.inexplicable(now):
                self._cannot_explain(dispute)
            if dispute.confirmed_ms is not None and now - dispute.confirmed_ms >= REFOLD_EVERY_MS:
                self.disputes.over(dispute)  # who still differs says so again

    def _cannot_explain(self, dispute: DigestMismatch) -> None:
        dispute.unexplained = True
        self.disputes.unexplained += 1
        _logger.error(
            "replica %s had something else at %s:%d, our fold is what the log gives, and it does not say that it was "
            "wrong: the log or the code is at fault; keep the data folders of both",
            dispute.first,
            dispute.stream,
            dispute.seq,
        )

    def _on_replaced(self, dispute: DigestMismatch, finding: RefoldComparison) -> None:
        self.rebuilt += 1
        self._say(_found(finding, dispute.first, REPLACED))
        self.became()
        _logger.error("our fold was wrong at %s:%d: a new one serves", finding.stream, finding.seq)

    def _on_confirmed(self, dispute: DigestMismatch, finding: RefoldComparison) -> None:
        if not self.disputes.is_open(dispute):
            return  # taken back while we folded anew
        self._say(_found(finding, dispute.first, CONFIRMED))
        _logger.warning("our fold is what the log gives at %s:%d", finding.stream, finding.seq)
        if dispute.own:
            self.disputes.over(dispute)
        else:
            dispute.confirmed_ms = self._clock.monotonic_ms()


def _found(finding: RefoldComparison, other: ReplicaId, verdict: str) -> DivergenceFound:
    return DivergenceFound(
        stream=finding.stream,
        epoch=finding.epoch,
        seq=finding.seq,
        digest=finding.served,
        refolded=finding.refolded,
        other=other,
        verdict=verdict,
    )
