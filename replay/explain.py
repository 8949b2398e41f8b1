"""Explain: why a request went where it went, from the log alone."""

from __future__ import annotations

from typing import Any

import msgspec

from core.errors import CallerError
from core.event_json import time_text
from core.events import (
    LocalChanged,
    ReplicaJoined,
    ReplicaRestated,
    RequestFinished,
    RequestMigrated,
    RequestPrefilled,
    RequestRejected,
    RequestRouted,
    SettingsChanged,
    WorkerJoined,
)
from core.ids import StreamSeq, from_column
from core.settings import RoutingSettings
from core.subjects import ROUTING, is_kv
from replay.history import Entry, entries
from streams.log import EventLog

MILLI = 1000


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded candidate with its cost taken apart; costs in blocks."""

    worker: str
    name: str
    chosen: bool
    cost: float
    prefill_cost: float
    decode_cost: float
    request_cost: float
    overlap: int
    """Blocks of the prompt cached there, in any tier."""
    pending: int
    to_prefill: float
    active_blocks: int
    active_requests: int
    waiting: int
    cache_known: bool


class Attempt(msgspec.Struct, kw_only=True):
    """One decision and what came of it."""

    attempt: int
    seq: StreamSeq
    time: str
    replica: str
    replica_name: str
    policy: str
    settings_revision: int
    prompt_tokens: int
    block_size: int
    prompt_blocks: int
    worker: str
    worker_name: str
    candidates: list[Row]
    candidates_total: int
    excluded: dict[str, dict[str, Any]]
    local: dict[str, list[str]]
    """What only that replica knew: worker, as name and id, to reasons."""
    cursor: dict[str, int]
    digest: str
    predicted_cached_tokens: int
    why: str
    told_tokens: int = 0
    """Tokens of the answer that the client had already, from an attempt before whose worker broke off."""
    real_cached_tokens: int | None = None
    ttft_ms: int | None = None
    outcome: str | None = None
    output_tokens: int | None = None
    duration_ms: int | None = None
    detail: str = ""


class Rejection(msgspec.Struct, kw_only=True):
    """No worker could take it."""

    attempt: int
    time: str
    reason: str
    status: int
    excluded: dict[str, dict[str, Any]]


class Explanation(msgspec.Struct, kw_only=True):
    """All that the log knows of one request."""

    request: str
    model: str
    attempts: list[Attempt]
    rejections: list[Rejection]


class _Names(msgspec.Struct):
    workers: dict[str, str] = msgspec.field(default_factory=dict)
    replicas: dict[str, str] = msgspec.field(default_factory=dict)
    settings: dict[tuple[str, int], RoutingSettings] = msgspec.field(default_factory=dict)

    def worker(self, worker: str) -> str:
        return self.workers.get(worker, worker)

    def life(self, worker: str) -> str:
        """Name and id: a worker has a new id at every start, and several of one name may be meant."""
        return f"{self.workers[worker]} ({worker})" if worker in self.workers else worker

    def note(self, entry: Entry) -> None:
        source = entry.message.source
        for event in entry.message.events:
            match event:
                case WorkerJoined():
                    self.workers[source] = event.name
                case ReplicaJoined():
                    self.replicas[source] = event.name
                case SettingsChanged():
                    self.settings[source, event.revision] = RoutingSettings.parse(event.settings)
                case _:
                    pass  # names nobody


async def explain(log: EventLog, request: str) -> Explanation:
    """CallerError if the log does not know the request. Reads the kv and routing streams once."""
    names = _Names()
    for stream in await log.streams():
        if is_kv(stream) or stream == ROUTING:
            async for entry in entries(log, stream):
                names.note(entry)
    reader = _Reader(request, names)
    async for entry in entries(log, ROUTING):
        for event in entry.message.events:
            reader.note(entry, event)
    if not reader.attempts and not reader.rejections:
        raise CallerError(f"the log knows no request {request!r}; `contrail events --stream routing` lists them")
    return Explanation(
        request=request,
        model=reader.model,
        attempts=[reader.attempts[number] for number in sorted(reader.attempts)],
        rejections=reader.rejections,
    )


class _Reader:
    """Picks one request's events out of the routing stream."""

    def __init__(self, request: str, names: _Names) -> None:
        self.model = ""
        self.attempts: dict[int, Attempt] = {}
        self.rejections: list[Rejection] = []
        self._request = request
        self._names = names
        self._local: dict[str, dict[str, tuple[str, ...]]] = {}
        self._told: dict[int, int] = {}
        """Tokens told before an attempt that goes on with an answer."""

    def note(self, entry: Entry, event: object) -> None:
        """Takes in what is about the request."""
        match event:
            case RequestRouted(request=self._request):
                self.model = event.model
                local = self._local.get(entry.message.source, {})
                attempt = self.attempts[event.attempt] = _attempt(event, entry, self._names, local)
                attempt.told_tokens = self._told.get(event.attempt, 0)
            case RequestMigrated(request=self._request):
                self._told[event.attempt] = event.told_tokens
            case RequestPrefilled(request=self._request) if event.attempt in self.attempts:
                _prefilled(self.attempts[event.attempt], event)
            case RequestFinished(request=self._request) if event.attempt in self.attempts:
                _finished(self.attempts[event.attempt], event)
            case RequestRejected(request=self._request):
                self.model = event.model
                self.rejections.append(_rejection(event, entry.time_ms, self._names))
            case LocalChanged():
                self._note_local(self._local.setdefault(entry.message.source, {}), event)
            case ReplicaRestated():
                self._local.pop(entry.message.source, None)
            case _:
                pass  # about other requests

    @staticmethod
    def _note_local(local: dict[str, tuple[str, ...]], event: LocalChanged) -> None:
        if event.reasons:
            local[event.worker] = event.reasons
        else:
            local.pop(event.worker, None)


def _attempt(event: RequestRouted, entry: Entry, names: _Names, local: dict[str, tuple[str, ...]]) -> Attempt:
    source = entry.message.source
    settings = names.settings.get((source, event.settings_revision), RoutingSettings(policy=event.policy))
    rows = _rows(event, settings, names)
    return Attempt(
        attempt=event.attempt,
        seq=entry.seq,
        time=time_text(entry.time_ms),
        replica=source,
        replica_name=names.replicas.get(source, source),
        policy=event.policy,
        settings_revision=event.settings_revision,
        prompt_tokens=event.prompt_tokens,
        block_size=event.block_size,
        prompt_blocks=event.blocks,
        worker=event.worker,
        worker_name=names.worker(event.worker),
        candidates=rows,
        candidates_total=event.candidates_total,
        excluded=_excluded(event.excluded, names),
        local={names.life(worker): list(reasons) for worker, reasons in sorted(local.items())},
        cursor={stream: at for stream, (_, at) in event.cursor.items()},
        digest=event.digest,
        predicted_cached_tokens=event.predicted_cached_tokens,
        why=_why(event, rows),
    )


def _rows(event: RequestRouted, settings: RoutingSettings, names: _Names) -> list[Row]:
    rows = []
    for i, worker in enumerate(from_column(event.candidates)):
        at = {name: column[i] for name, column in event.columns.items()}
        kv = event.policy == "kv"
        rows.append(
            Row(
                worker=worker,
                name=names.worker(worker),
                chosen=worker == event.worker,
                cost=at["cost"] / MILLI,
                prefill_cost=settings.prefill_weight_m * at["prefill"] / MILLI**2 if kv else 0.0,
                decode_cost=settings.decode_weight_m * (at["active_blocks"] + event.blocks) / MILLI if kv else 0.0,
                request_cost=settings.request_weight_m * at["active_requests"] / MILLI if kv else 0.0,
                overlap=at["overlap_all"],
                pending=at["pending"],
                to_prefill=at["prefill"] / MILLI,
                active_blocks=at["active_blocks"],
                active_requests=at["active_requests"],
                waiting=at["waiting"],
                cache_known=bool(at["known"]),
            )
        )
    return rows


def _why(event: RequestRouted, rows: list[Row]) -> str:
    chosen, others = rows[0], rows[1:]
    if not others:
        return f"{chosen.name} was the only candidate"
    if event.policy in {"round-robin", "random"}:
        return f"policy {event.policy} looks at no cost: it was {chosen.name}'s turn"
    best = min(others, key=lambda row: row.cost)
    if best.cost == chosen.cost:
        return f"{chosen.name} and {best.name} cost the same; the hash of request and worker decided"
    if best.cost < chosen.cost:
        return (
            f"{best.name} was cheaper by {chosen.cost - best.cost:g}; temperature or the tie margin gave {chosen.name}"
        )
    reason = f"{chosen.name} costs {best.cost - chosen.cost:g} less than {best.name}"
    if event.policy == "kv" and max(chosen.overlap, chosen.pending) > max(best.overlap, best.pending):
        held = f"{chosen.overlap} of {event.prompt_tokens // event.block_size} full blocks of the prompt cached"
        reason += f": it has {held}, {best.name} has {best.overlap}"
    elif chosen.active_blocks < best.active_blocks:
        reason += f": {chosen.active_blocks} active blocks against {best.active_blocks}"
    return reason


def _excluded(excluded: dict[str, tuple[int, bytes]], names: _Names) -> dict[str, dict[str, Any]]:
    return {
        reason: {"count": count, "first": [names.life(w) for w in from_column(ids)]}
        for reason, (count, ids) in excluded.items()
    }


def _prefilled(attempt: Attempt, event: RequestPrefilled) -> None:
    attempt.real_cached_tokens = event.cached_tokens
    attempt.ttft_ms = event.ttft_ms


def _finished(attempt: Attempt, event: RequestFinished) -> None:
    attempt.outcome = event.outcome
    attempt.output_tokens = event.output_tokens
    attempt.duration_ms = event.duration_ms
    attempt.detail = event.detail


def _rejection(event: RequestRejected, time_ms: int, names: _Names) -> Rejection:
    return Rejection(
        attempt=event.attempt,
        time=time_text(time_ms),
        reason=event.reason,
        status=event.status,
        excluded=_excluded(event.excluded, names),
    )
