"""StateDiff: what changed between two moments: workers, replicas, blocks, settings, and requests in flight."""

from __future__ import annotations

from typing import Any

import msgspec

from core.ids import WorkerId
from core.prompt import hashes_from_bytes
from core.settings import TIERS
from projections.folds.state import State
from replay.state_at.state_at import StateAt
from replay.state_at.state_summary import ReplicaSummary, RequestSummary, StateSummary, WorkerSummary

REQUESTS_SHOWN_MAX = 1000


class Participant(msgspec.Struct, frozen=True, kw_only=True):
    """A worker or a replica."""

    id: str
    name: str


class WorkerChange(msgspec.Struct, frozen=True, kw_only=True):
    """One worker that is there at both moments, or came or went in between."""

    worker: str
    name: str
    blocks_gained: dict[str, int]
    """Per tier: blocks that it holds after and not before …"""
    blocks_lost: dict[str, int]
    """… and the other way round."""
    active_requests: tuple[int, int]
    active_blocks: tuple[int, int]
    waiting: tuple[int | None, int | None]
    """By its load reports."""


class ReplicaChange(msgspec.Struct, frozen=True, kw_only=True):
    """One replica that is there at both moments."""

    replica: str
    name: str
    decisions: int
    """Made in between, unless it restated itself."""
    settings: dict[str, tuple[Any, Any]]
    """Those that are others now: before and after."""


class StateDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of `contrail replay at --diff --json`; pairs are before and after."""

    time: tuple[str, str]
    elapsed_ms: int
    messages: dict[str, int]
    """Per stream, folded in between; negative if the second moment is the earlier one."""
    workers_joined: list[Participant]
    workers_gone: list[Participant]
    workers: list[WorkerChange]
    """Of which anything changed."""
    replicas_joined: list[Participant]
    replicas_gone: list[Participant]
    replicas: list[ReplicaChange]
    requests_started: int
    """Under way after and not before."""
    requests_ended: int
    """Under way before and not after."""
    started: list[RequestSummary]
    """The first REQUESTS_SHOWN_MAX of them."""
    ended: list[RequestSummary]

    @property
    def nothing(self) -> bool:
        """The two states are the same."""
        people = (self.workers_joined, self.workers_gone, self.replicas_joined, self.replicas_gone)
        changes = (self.workers, self.replicas, self.started, self.ended)
        return not any(people) and not any(changes)


def state_diff(before: StateAt, after: StateAt) -> StateDiff:
    """Differences between the two states. O(all blocks of both)."""
    first, second = before.held(), after.held()
    workers = ({each.worker: each for each in held.workers} for held in (first, second))
    replicas = ({each.replica: each for each in held.replicas} for held in (first, second))
    old_workers, new_workers = workers
    old_replicas, new_replicas = replicas
    changes = _worker_changes(old_workers, new_workers, blocks_of(before.state), blocks_of(after.state))
    started, ended = _requests(first, second), _requests(second, first)
    return StateDiff(
        time=(first.time, second.time),
        elapsed_ms=second.time_ms - first.time_ms,
        messages={
            stream: second.cursor.get(stream, 0) - first.cursor.get(stream, 0)
            for stream in sorted(first.cursor | second.cursor)
        },
        workers_joined=[_worker(new_workers[each]) for each in sorted(new_workers.keys() - old_workers.keys())],
        workers_gone=[_worker(old_workers[each]) for each in sorted(old_workers.keys() - new_workers.keys())],
        workers=changes,
        replicas_joined=[_replica(new_replicas[each]) for each in sorted(new_replicas.keys() - old_replicas.keys())],
        replicas_gone=[_replica(old_replicas[each]) for each in sorted(old_replicas.keys() - new_replicas.keys())],
        replicas=_replica_changes(old_replicas, new_replicas),
        requests_started=len(started),
        requests_ended=len(ended),
        started=started[:REQUESTS_SHOWN_MAX],
        ended=ended[:REQUESTS_SHOWN_MAX],
    )


Blocks = dict[str, dict[WorkerId, set[int]]]
"""Per tier and worker."""


def blocks_of(state: State) -> Blocks:
    """Blocks per tier and worker. O(all blocks and holders)."""
    found: Blocks = {}
    for tier, holdings in state.index.contents().items():
        held: dict[WorkerId, set[int]] = {}
        for holding in holdings:
            hashes = hashes_from_bytes(holding.hashes)
            for worker in holding.workers:
                held.setdefault(worker, set()).update(hashes)
        found[tier] = held
    return found


def _worker_changes(
    old: dict[str, WorkerSummary], new: dict[str, WorkerSummary], held: Blocks, holds: Blocks
) -> list[WorkerChange]:
    changes = []
    for worker in sorted(old.keys() | new.keys()):
        before, after = old.get(worker), new.get(worker)
        known = after or before
        assert known is not None
        change = WorkerChange(
            worker=worker,
            name=known.name,
            blocks_gained=_without(holds, held, worker),
            blocks_lost=_without(held, holds, worker),
            active_requests=(_number(before, "active_requests"), _number(after, "active_requests")),
            active_blocks=(_number(before, "active_blocks"), _number(after, "active_blocks")),
            waiting=(_waiting(before), _waiting(after)),
        )
        pairs = (change.active_requests, change.active_blocks, change.waiting)
        if change.blocks_gained or change.blocks_lost or any(one != other for one, other in pairs):
            changes.append(change)
    return changes


def _without(some: Blocks, others: Blocks, worker: str) -> dict[str, int]:
    """Per tier how many blocks the worker has in one and not in the other."""
    who, none = WorkerId(worker), set[int]()
    counts = {tier: len(some.get(tier, {}).get(who, none) - others.get(tier, {}).get(who, none)) for tier in TIERS}
    return {tier: count for tier, count in counts.items() if count}


def _number(worker: WorkerSummary | None, what: str) -> int:
    return 0 if worker is None else int(getattr(worker, what))


def _waiting(worker: WorkerSummary | None) -> int | None:
    return None if worker is None or worker.load is None else worker.load.waiting


def _replica_changes(old: dict[str, ReplicaSummary], new: dict[str, ReplicaSummary]) -> list[ReplicaChange]:
    changes = []
    for replica in sorted(old.keys() & new.keys()):
        before, after = old[replica], new[replica]
        made = sum(after.decisions.values()) - sum(before.decisions.values())
        settings = {
            name: (before.settings.get(name), value)
            for name, value in after.settings.items()
            if before.settings.get(name) != value
        }
        if made or settings:
            changes.append(ReplicaChange(replica=replica, name=after.name, decisions=made, settings=settings))
    return changes


def _requests(first: StateSummary, second: StateSummary) -> list[RequestSummary]:
    """Those that are under way in the second and not in the first."""
    known = {(each.replica, each.request, each.attempt) for each in first.in_flight}
    return [each for each in second.in_flight if (each.replica, each.request, each.attempt) not in known]


def _worker(worker: WorkerSummary) -> Participant:
    return Participant(id=worker.worker, name=worker.name)


def _replica(replica: ReplicaSummary) -> Participant:
    return Participant(id=replica.replica, name=replica.name)
