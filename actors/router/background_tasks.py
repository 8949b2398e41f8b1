"""BackgroundTasks: the work of a replica beside serving.

It exchanges digests with other replicas, takes snapshots, appends events that dead processes left in their journals,
asks sources to restate themselves, restates itself, audits the index and the counts of requests in flight, and compares
the log with the heads that were kept of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from actors.consistency.digest_exchange import CheckpointPassed, FoldReplaced, ReportRead, VerdictRead
from actors.consistency.digest_exchange_shell import DigestExchangeShell
from actors.consistency.in_flight_audit_schedule import InFlightAuditSchedule
from actors.consistency.index_audit_schedule import IndexAuditSchedule
from actors.consistency.log_heads import LogHeads
from actors.consistency.restatement_requests import CHECK_EVERY_S, AskWorker, RestatementRequests, RestateReplica
from actors.consistency.snapshot_schedule import SnapshotSchedule
from actors.membership.replica_membership import ReplicaMembership
from actors.membership.restatement_schedule import RestatementSchedule
from actors.router.fleet import Fleet
from core.events import DivergenceFound, Event, ReplicaJoined, ReplicaReported
from core.ids import ReplicaId, StreamName, StreamSeq
from core.keys import DeploymentKey
from core.snapshot_manifest import Manifest
from core.subjects import ROUTING
from projections.folds.state import Applied, State
from projections.runner.rebuild import rebuild
from projections.runner.runner import Runner
from streams.broker_clock import BrokerClock
from streams.log import EventLog, Extents
from streams.log_watch import POLL_EVERY_S, LogWatch
from streams.outbox.journal_recovery import JournalRecovery
from streams.registry import Registry
from streams.snapshot_store import SnapshotStore

TakeSnapshot = Callable[[str, int], Awaitable[None]]
"""Takes a snapshot; the arguments are the replica's id and the fencing token of its claim."""


class BackgroundTasks:
    """The background work of one replica. Its owner runs `loops` and calls the `on_…` methods."""

    def __init__(
        self,
        namespace: str,
        log: EventLog,
        log_watch: LogWatch,
        registry: Registry,
        clock: BrokerClock,
        key: DeploymentKey,
        state: State,
        runner: Runner,
        store: SnapshotStore,
        membership: ReplicaMembership,
        fleet: Fleet,
        *,
        journal: Path | None,
        snapshot_every_s: float,
        take_snapshot: TakeSnapshot | None,
        restate_every_s: float,
    ) -> None:
        self._membership = membership
        self._fleet = fleet
        self._clock = clock
        self._state = state
        self._runner = runner

        async def rebuild_beside() -> State:
            return (await rebuild(log, key.chain_key, store)).state

        self.digest_exchange = DigestExchangeShell(
            state,
            self._publish_report,
            self._replica_id,
            clock,
            registry,
            rebuild=rebuild_beside,
            replace=runner.rebuild,
        )
        self.index_audit = IndexAuditSchedule(state, clock, runner.rebuild)
        self.in_flight_audit = InFlightAuditSchedule(state, membership, runner.rebuild)
        self.restatement_requests = RestatementRequests(state)
        self.log_heads = LogHeads(log, self._poll, registry, clock, state, lambda loss: membership.restate(loss.text))
        self._log_watch = log_watch
        self._poll_every_s = min(POLL_EVERY_S, restate_every_s)
        self._restatements = RestatementSchedule(self._replica_id(), clock, membership.restate, every_s=restate_every_s)
        self.journal_recovery = None if journal is None else JournalRecovery(journal, namespace, log, clock, key)
        self.snapshot_schedule: SnapshotSchedule | None = None
        if take_snapshot is not None:
            self.snapshot_schedule = SnapshotSchedule(
                registry,
                clock,
                self._replica_id,
                every_s=snapshot_every_s,
                newest_first=store.newest_first,
                take=lambda fence: take_snapshot(self._replica_id(), fence),
                folded=lambda: sum(at.seq for at in state.cursor.values()),
                on_incomplete=self._on_incomplete_snapshot,
            )

    def __repr__(self) -> str:
        return f"<BackgroundTasks {self.digest_exchange!r}, {self.snapshot_schedule!r}>"

    def loops(self) -> Iterator[Coroutine[None, None, None]]:
        """The loops that run for as long as the replica does."""
        yield self.digest_exchange.run()
        yield self._check_sources_loop()
        yield self.index_audit.run()
        yield self.in_flight_audit.run()
        yield self.log_heads.run(self._poll_every_s)
        if self.journal_recovery is not None:
            yield self.journal_recovery.run()
        if self.snapshot_schedule is not None:
            yield self.snapshot_schedule.run()

    async def stop(self) -> None:
        """Other replicas may resolve mismatches and take snapshots. To be called when the loops have ended."""
        async with AsyncExitStack() as each:
            each.push_async_callback(self.digest_exchange.stop)
            each.push_async_callback(self.log_heads.stop)
            if self.snapshot_schedule is not None:
                each.push_async_callback(self.snapshot_schedule.stop)

    def on_checkpoint(self, stream: StreamName, seq: StreamSeq) -> None:
        """The state has folded a message at which replicas compare their folds."""
        self.digest_exchange.feed(CheckpointPassed(stream, seq))

    def on_routed(self, applied: Applied) -> None:
        """The state has folded a message of another replica: reports and mismatches in it are passed on."""
        replica = ReplicaId(applied.owner)
        for event in applied.message.events:
            if isinstance(event, ReplicaReported):
                if self._runner.caught_up:  # until then reports are too old to be compared
                    self.digest_exchange.feed(ReportRead(replica, event))
                self._restate(self.restatement_requests.on_report(replica, event, self._clock.monotonic_ms()))
            elif isinstance(event, ReplicaJoined):
                self._membership.on_joined(event)
            elif isinstance(event, DivergenceFound) and self._runner.caught_up:
                self.digest_exchange.feed(VerdictRead(replica, event))

    def on_state_replaced(self) -> None:
        """The state was replaced by a rebuilt one."""
        self.digest_exchange.feed(FoldReplaced())
        self.check_sources()

    def check_sources(self) -> None:
        """Restatements that are due were requested. To be called after a change of the fold or of a connection."""
        connected = {worker for worker, client in self._fleet.clients.items() if client.up}
        self._restate(self.restatement_requests.check(self._replica_id(), connected, self._clock.monotonic_ms()))

    def describe(self) -> dict[str, Any]:
        """Facts for `/state`."""
        agreement = self.digest_exchange.describe()
        about: dict[str, Any] = {
            "agreement": agreement,
            "divergences": agreement["divergences"],
            "index_damaged": self.index_audit.damaged,
            "index_audit": self.index_audit.describe(),
            "in_flight_damaged": self.in_flight_audit.damaged,
            "in_flight_differences": list(self.in_flight_audit.differences),
            "losses": self.log_heads.describe(),
        }
        if self.snapshot_schedule is not None:
            about["snapshot"] = self.snapshot_schedule.describe()
        return about

    async def _poll(self) -> Extents:
        """The extents of all streams; this replica has restated itself if that is due by them."""
        states = await self._log_watch.poll()
        if ROUTING in states:
            self._restatements.check(states[ROUTING])
            self._membership.bases.retained(states[ROUTING])
        return states

    def _publish_report(self, event: Event) -> None:
        """The event goes to the log; a report with the offset of this machine's clock, if there is one to note."""
        offset_ms = self._clock.noted_offset_ms
        if offset_ms and isinstance(event, ReplicaReported):
            event = replace(event, clock_offset_ms=offset_ms)
        self._membership.publish(event)

    async def _check_sources_loop(self) -> None:
        while True:
            self.check_sources()
            await asyncio.sleep(CHECK_EVERY_S)

    def _restate(self, due: Iterable[AskWorker | RestateReplica]) -> None:
        for each in due:
            if isinstance(each, AskWorker):
                self._fleet.clients[each.worker].restate()
            else:
                self._membership.restate(each.reason)

    def _on_incomplete_snapshot(self, manifest: Manifest, is_writer: bool) -> None:
        """Every replica restates itself; the writer asks the workers, so that each is asked once."""
        self._membership.restate(f"snapshot {manifest.id} was taken with incomplete sources")
        if is_writer:
            for client in self._fleet.clients.values():
                if client.up:
                    client.restate()

    def _replica_id(self) -> ReplicaId:
        return self._membership.publisher.id
