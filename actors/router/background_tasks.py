"""Upkeep: what a replica does for the record beside serving: it agrees with others, takes snapshots, tells what the
dead left in their journals, and sees to it that whoever lost track of a source hears from it again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from actors.consistency.digest_checkpoints import CHECKPOINT_EVERY
from actors.consistency.digest_exchange import DigestExchange
from actors.consistency.index_audit_schedule import IndexAuditSchedule
from actors.consistency.restatement_requests import RestatementRequests
from actors.consistency.snapshot_schedule import SnapshotSchedule
from actors.membership.replica_membership import ReplicaMembership
from actors.membership.runtime_context import RuntimeContext
from actors.router.fleet import Fleet
from actors.router.routed_request import AttemptTable
from core.events import DivergenceFound, ReplicaReported
from core.ids import ReplicaId
from core.subjects import ROUTING
from projections.folds.state import Applied, State
from projections.runner.rebuild import rebuild
from projections.runner.runner import Runner
from streams.outbox.journal_recovery import JournalRecovery
from streams.snapshot_store import SnapshotStore

TakeSnapshot = Callable[[str, int], Awaitable[None]]
"""Takes one, by whom and under which claim."""


class BackgroundTasks:
    """The parts of it, put together; `loops` are to be run, `applied` and `became` to be called."""

    def __init__(
        self,
        around: RuntimeContext,
        state: State,
        runner: Runner,
        store: SnapshotStore,
        life: ReplicaMembership,
        fleet: Fleet,
        flights: AttemptTable,
        *,
        journal: Path | None,
        snapshot_every_s: float,
        take_snapshot: TakeSnapshot | None,
    ) -> None:
        log, registry, clock, key = around.log, around.registry, around.clock, around.key
        self._life = life
        self._state = state
        self._runner = runner

        async def refold() -> State:
            return (await rebuild(log, key.chain_key, store)).state

        self.agreement = DigestExchange(
            state, life.say, self._me, clock, registry, refold=refold, rebuild=runner.rebuild
        )
        self.index_check = IndexAuditSchedule(state, clock, runner.rebuild)
        self.restatements = RestatementRequests(state, clock, life, fleet, flights)
        self.predecessors = None if journal is None else JournalRecovery(journal, around.namespace, log, clock, key)
        self.snapshots: SnapshotSchedule | None = None
        if take_snapshot is not None:
            self.snapshots = SnapshotSchedule(
                registry,
                clock,
                self._me,
                every_s=snapshot_every_s,
                newest_first=store.newest_first,
                take=lambda fence: take_snapshot(self._me(), fence),
                folded=lambda: sum(at.seq for at in state.cursor.values()),
            )

    def __repr__(self) -> str:
        return f"<BackgroundTasks {self.agreement!r}, {self.snapshots!r}>"

    def loops(self) -> Iterator[Coroutine[None, None, None]]:
        """What runs for as long as the replica does."""
        yield self.agreement.run()
        yield self.restatements.run()
        yield self.index_check.run()
        if self.predecessors is not None:
            yield self.predecessors.run()
        if self.snapshots is not None:
            yield self.snapshots.run()

    async def stop(self) -> None:
        """Another may settle disputes and take snapshots. To be called when the loops have ended."""
        async with AsyncExitStack() as each:
            each.push_async_callback(self.agreement.stop)
            if self.snapshots is not None:
                each.push_async_callback(self.snapshots.stop)

    def applied(self, applied: Applied) -> None:
        """To be called when the state has folded this."""
        if applied.seq % CHECKPOINT_EVERY == 0:
            self.agreement.passed(applied.stream, applied.seq)
        if applied.stream != ROUTING:
            return
        for event in applied.message.events:
            if isinstance(event, ReplicaReported | DivergenceFound):
                if self._runner.caught_up:  # old accusations are nobody's business now
                    self.agreement.hear(ReplicaId(applied.owner), event)
                self.restatements.hear(ReplicaId(applied.owner), event)

    def became(self) -> None:
        """To be called when the state became another."""
        self.agreement.became()
        self.restatements.look()

    def describe(self) -> dict[str, Any]:
        """Facts for `/state`."""
        agreement = self.agreement.describe()
        about: dict[str, Any] = {
            "agreement": agreement,
            "divergences": agreement["divergences"],
            "index_damaged": self.index_check.damaged,
        }
        if self.snapshots is not None:
            about["snapshot"] = self.snapshots.describe()
        return about

    def _me(self) -> ReplicaId:
        return self._life.voice.id
