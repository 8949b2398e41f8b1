"""A snapshot without names: the state in it is read, renamed, put on the new chains, and written again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from core.codec import digest
from core.ids import ReplicaId, StreamName, WorkerId
from core.snapshot_manifest import Manifest
from core.subjects import JOBS, LOAD, ROUTING
from projections.folds.jobs_fold import JobsFold
from projections.folds.snapshot import cursor_of, decode, encode
from projections.folds.source_fold import Chain, Tombstones
from projections.folds.state import State
from replay.redact.pseudonyms import Pseudonyms, is_id
from replay.redact.redaction_rules import (
    redact_load_report,
    redact_pool_joined,
    redact_replica_joined,
    redact_worker_joined,
)
from replay.redact.resealing import ChainsAtSnapshot


def redact_snapshot(
    manifest: Manifest, content: bytes, names: Pseudonyms, passed: Mapping[StreamName, ChainsAtSnapshot], new_key: bytes
) -> tuple[Manifest, bytes]:
    """The snapshot of the same moment in the redacted log. Corrupt if this program does not go on from the content."""
    state = decode(b"", content)
    _drop_foreign_participants(state)
    _rename(state, names)
    return rechained(replace(manifest, by=names.author(manifest.by)), state, passed, new_key)


def rechained(
    manifest: Manifest, state: State, passed: Mapping[StreamName, ChainsAtSnapshot], new_key: bytes
) -> tuple[Manifest, bytes]:
    """A snapshot of the state on the new chains, and its manifest made true."""
    for stream, at in passed.items():
        if stream in state.cursor:
            _rechain(state, stream, at)
    content = b"".join(encode(state))
    again = decode(new_key, content)  # sums over names are made when a state is read
    return replace(
        manifest,
        cursor=cursor_of(again),
        digest=f"{again.digest:016x}",
        size_bytes=len(content),
        checksum=digest(content, new_key).hex(),
    ), content


def _drop_foreign_participants(state: State) -> None:
    """Workers and replicas with an id of another form than ours are removed: they have no part in any decision."""
    for kv in state.kv.values():
        for worker in [worker for worker in kv.members if not is_id(worker)]:
            state.index.drop(worker)
            del kv.members[worker]
            kv.pools.pop(WorkerId(worker), None)
    loads = state.loads
    every: tuple[dict[Any, Any], ...] = (loads.parts, state.routing.parts, state.jobs.parts)
    for parts in every:
        for source in [source for source in parts if not is_id(source)]:
            del parts[source]
    loads.reports = {worker: report for worker, report in loads.reports.items() if is_id(worker)}


def _rename(state: State, names: Pseudonyms) -> None:
    for kv in state.kv.values():
        for member in kv.members.values():
            member.joined = None if member.joined is None else redact_worker_joined(member.joined, names)
            member.pool = redact_pool_joined(member.pool, names) if member.pool else UNSET
    for worker, report in state.loads.reports.items():
        state.loads.reports[worker] = redact_load_report(report)
    for part in state.routing.replicas.values():
        part.joined = None if part.joined is None else redact_replica_joined(part.joined, names)
        part.settings = names.settings(part.settings)
        names.note(request for request, _ in part.in_flight)
    _rename_jobs(state.jobs, names)
    for stream in state.cursor:
        _bury_anew(state.projection(stream).ended, names)


def _rename_jobs(jobs: JobsFold, names: Pseudonyms) -> None:
    for part in jobs.parts.values():
        part.asked = {names.id(job): asked for job, asked in part.asked.items()}
        part.taken = {names.id(job): names.id(requester) for job, requester in part.taken.items()}
    jobs.answered = {names.id(job): None for job in jobs.answered}


def _bury_anew(ended: Tombstones, names: Pseudonyms) -> None:
    """In their order."""
    buried = [(names.id(who), names.tombstone(why)) for who, why in ended.items()]
    ended.clear()
    ended.update(buried)


def _rechain(state: State, stream: StreamName, at: ChainsAtSnapshot) -> None:
    for owner, end in at.ends.items():
        chain = _chain(state, stream, owner)
        if chain is not None and chain.n_next == end.n + 1:
            chain.head = end.new
    if at.head is not None:
        state.resume(stream, state.cursor[stream], at.head)


def _chain(state: State, stream: StreamName, owner: str) -> Chain | None:
    if stream == LOAD:
        return state.loads.chains.get(WorkerId(owner))
    if stream == ROUTING:
        part = state.routing.replicas.get(ReplicaId(owner))
        return None if part is None else part.chain
    if stream == JOBS:
        jobs = state.jobs.parts.get(WorkerId(owner))
        return None if jobs is None else jobs.chain
    member = state.kv[stream].members.get(WorkerId(owner))
    return None if member is None else member.chain
