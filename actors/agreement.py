"""Agreement: replicas that prove to each other that they are equal, and settle who was wrong when they are not.

1. Every REPORT_EVERY_MS a replica says in the log what its folds were at cursors that others pass too, and compares
   what the others say with its own. Nothing is asked for and nothing is waited for.
2. A difference is a dispute (`actors.dispute`). It is settled by folding the log anew beside the fold that serves
   (`actors.settlement`): whoever differs from that was wrong, goes on with a new fold, and says so.
3. `step` does what is due now and never waits for a fold; the loop only calls it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from actors.comparison import Comparison, Difference
from actors.dispute import Dispute, Disputes
from actors.milestones import Milestones
from actors.refold import Finding, drift
from actors.settlement import REFOLD_EVERY_MS, Settlement
from core.clock import Clock
from core.events import DivergenceFound, Event, ReplicaReported
from core.ids import ReplicaId, StreamName, StreamSeq
from projections.folds.state import State
from streams.registry import Registry

STEP_EVERY_S = 1.0
REPORT_EVERY_MS = 5_000
REPLACED, CONFIRMED = "replaced", "confirmed"

_logger = logging.getLogger(__name__)


class Agreement:
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
        self.disputes = Disputes()
        self._state = state
        self._say = say
        self._me = me
        self._clock = clock
        self._milestones = Milestones(state)
        self._comparison = Comparison(state, self._milestones)
        self._reported_ms: int | None = None
        self._settlement = Settlement(
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
        return f"<Agreement {self._comparison!r}, {self.disputes!r}, {self._settlement!r}>"

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

    def _differ(self, differences: list[Difference]) -> None:
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

    def _cannot_explain(self, dispute: Dispute) -> None:
        dispute.unexplained = True
        self.disputes.unexplained += 1
        _logger.error(
            "replica %s had something else at %s:%d, our fold is what the log gives, and it does not say that it was "
            "wrong: the log or the code is at fault; keep the data folders of both",
            dispute.first,
            dispute.stream,
            dispute.seq,
        )

    def _on_replaced(self, dispute: Dispute, finding: Finding) -> None:
        self.rebuilt += 1
        self._say(_found(finding, dispute.first, REPLACED))
        self.became()
        _logger.error("our fold was wrong at %s:%d: a new one serves", finding.stream, finding.seq)

    def _on_confirmed(self, dispute: Dispute, finding: Finding) -> None:
        if not self.disputes.is_open(dispute):
            return  # taken back while we folded anew
        self._say(_found(finding, dispute.first, CONFIRMED))
        _logger.warning("our fold is what the log gives at %s:%d", finding.stream, finding.seq)
        if dispute.own:
            self.disputes.over(dispute)
        else:
            dispute.confirmed_ms = self._clock.monotonic_ms()


def _found(finding: Finding, other: ReplicaId, verdict: str) -> DivergenceFound:
    return DivergenceFound(
        stream=finding.stream,
        epoch=finding.epoch,
        seq=finding.seq,
        digest=finding.served,
        refolded=finding.refolded,
        other=other,
        verdict=verdict,
    )
