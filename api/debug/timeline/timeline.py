"""Timeline: decisions, loads, lifetimes of workers and replicas, and notes; from recorded events, without a fold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from api.debug.timeline.decision_table import DecisionTable
from api.debug.timeline.replica_reports import ReplicaReports
from api.debug.timeline.worker_loads import WorkerLoads
from core.ids import LOST_SUFFIX, StreamName
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING, is_kv
from projections.folds.state import State
from replay.recording.messages import PartialEvent, Row, decode_any
from replay.recording.request_history import Numbering, RequestHistory

NOTES_MAX = 10_000
"""Notes kept of one kind; later ones are only counted."""
CLIENT_GONE = "client_gone"
WORKER_EVENT, CACHE_EVENT = b"Worker", b"CacheCleared"
"""Bytes in each message of a kv stream that has another event than cached blocks."""


class Lifetime(msgspec.Struct):
    """A worker or replica from its start to its end; index in the list is its number in the columns."""

    id: str
    name: str = ""
    model: str = ""
    role: str = ""
    address: str = ""
    capacity_blocks: int = 0
    from_ms: int = -1
    """-1 if it joined before the recording begins."""
    to_ms: int = -1
    """-1 while it runs."""
    end: str = ""
    """`left` or `lost`; empty while it runs."""


class Lifetimes(Numbering):
    """Numbers of workers or replicas, each with its lifetime."""

    def __init__(self) -> None:
        super().__init__()
        self.lifetimes: list[Lifetime] = []

    def __missing__(self, name: str) -> int:
        self.lifetimes.append(Lifetime(name))
        return super().__missing__(name)


class TimelineNote(msgspec.Struct, frozen=True):
    """One incident, with a text for people."""

    ms: int
    kind: str
    text: str
    at: str
    """Its position in the log: `routing:1234`."""
    worker: int = -1
    replica: int = -1
    request: str = ""


class Timeline:
    """See the module's text. One thread gives it each stream's messages in order; others may read."""

    def __init__(self) -> None:
        self._worker_numbers, self._replica_numbers = Lifetimes(), Lifetimes()
        self.decisions = DecisionTable(RequestHistory(self._worker_numbers, self._replica_numbers))
        self.loads = WorkerLoads()
        self.reports = ReplicaReports()
        self.workers = self._worker_numbers.lifetimes
        self.replicas = self._replica_numbers.lifetimes
        self.notes: list[TimelineNote] = []
        self.notes_dropped: dict[str, int] = {}
        """Counts of notes beyond NOTES_MAX, by kind."""
        self._noted: dict[str, int] = {}
        self.settings: dict[tuple[int, int], dict[str, Any]] = {}
        """Settings by replica and revision."""
        self._in_force: dict[int, dict[str, Any]] = {}
        self.from_ms, self.to_ms = -1, -1
        """Times of the first and the last message of any stream."""

    def __repr__(self) -> str:
        return f"<Timeline {self.decisions!r}, {len(self.workers)} workers, {len(self.replicas)} replicas>"

    def begin(self, state: State) -> None:
        """Members of the state at the recording's start, and the settings of its replicas, are known."""
        for member in state.alive():
            joined = member.joined
            assert joined is not None
            life = self.workers[self.worker(member.worker)]
            life.name, life.model, life.role = joined.name, joined.model, joined.role
            life.address, life.capacity_blocks = joined.address, joined.capacity_blocks
        for replica, part in state.routing.replicas.items():
            number = self.replica(replica)
            if part.joined is not None:
                self.replicas[number].name, self.replicas[number].address = part.joined.name, part.joined.address
            if part.settings:
                self.settings[number, part.settings_revision] = self._in_force[number] = part.settings

    def add(self, stream: StreamName, rows: list[Row]) -> None:
        """The next messages of the stream are in the timeline."""
        if is_kv(stream):
            rows = [row for row in rows if WORKER_EVENT in row[3] or CACHE_EVENT in row[3]]
        if stream == ROUTING:
            self._add_routing(rows)
        else:
            self._add_of_workers(stream, rows)

    def include_times(self, from_ms: int, to_ms: int) -> None:
        """The timeline's time range includes these times."""
        self.from_ms = from_ms if self.from_ms < 0 else min(self.from_ms, from_ms)
        self.to_ms = max(self.to_ms, to_ms)

    def _add_of_workers(self, stream: StreamName, rows: list[Row]) -> None:
        for seq, ms, about, payload in rows:
            found = decode_any(payload)
            if found is not None and found.source in {about, about + LOST_SUFFIX}:
                for event in found.events:
                    self._of_worker(about, stream, seq, ms, event)

    def _add_routing(self, rows: list[Row]) -> None:
        for seq, ms, about, event in self.decisions.history.read(rows):
            if event.type == "ReplicaLost":
                reason = f"{event.reason}, found by {self._replica_name(event.by)}"
                self._ended(self.replica(about), seq, ms, "lost", reason)
            else:
                self._of_replica(self.replica(about), seq, ms, event)

    def worker(self, id: str) -> int:
        """The worker's number; a new id gets the next one."""
        return self._worker_numbers[id]

    def replica(self, id: str) -> int:
        """The replica's number; a new id gets the next one."""
        return self._replica_numbers[id]

    # --- workers -------------------------------------------------------------------------------------------------

    def _of_worker(self, id: str, stream: StreamName, seq: int, ms: int, event: PartialEvent) -> None:
        kind = event.type
        if kind == "LoadReported":
            if stream == LOAD:
                self.loads.add(self.worker(id), ms, event)
        elif kind == "WorkerJoined":
            self._joined(self.worker(id), f"{stream}:{seq}", ms, event)
        elif kind in {"WorkerLeft", "WorkerLost"} and is_kv(stream):
            number = self.worker(id)
            life, lost = self.workers[number], kind == "WorkerLost"
            life.to_ms = ms
            life.end = "lost" if lost else "left"
            by = f", found by {self._replica_name(event.by)}" if lost else ""
            self._note(ms, f"worker_{life.end}", f"{_named(life)} {life.end}: {event.reason}{by}", stream, seq, number)
        elif kind == "CacheCleared":
            number = self.worker(id)
            why = f": {event.reason}" if event.reason else ""
            text = f"{_named(self.workers[number])} cleared its cache{why}"
            self._note(ms, "cache_cleared", text, stream, seq, number)

    def _joined(self, number: int, at: str, ms: int, event: PartialEvent) -> None:
        life = self.workers[number]
        known = bool(life.name)
        life.name, life.model, life.role = event.name, event.model, event.role
        life.address, life.capacity_blocks = event.address, event.capacity_blocks
        if not known:
            life.from_ms = ms
            self._add_note(TimelineNote(ms, "worker_joined", f"{_named(life)} joined with {event.model}", at, number))

    # --- replicas ------------------------------------------------------------------------------------------------

    def _of_replica(self, number: int, seq: int, ms: int, event: PartialEvent) -> None:
        life = self.replicas[number]
        match event.type:
            case "ReplicaJoined":
                known, life.name, life.address = bool(life.name), event.name, event.address
                if not known:  # else it restates its identity
                    life.from_ms = ms
                    self._note(ms, "replica_joined", f"{_named(life)} joined", ROUTING, seq, replica=number)
            case "ReplicaLeft":
                self._ended(number, seq, ms, "left", event.reason)
            case "SettingsChanged":
                self._settings(number, seq, ms, event)
            case "ReplicaReported":
                self.reports.add(number, seq, ms, event)
            case "DivergenceFound":
                other = self._replica_name(event.other)
                text = f"{_named(life)} and {other} differed at {event.stream}:{event.seq}; {event.verdict}"
                self._note(ms, "divergence", text, ROUTING, seq, replica=number)
            case "RequestRejected" | "RequestTurnedAway":
                self._turned_away(number, seq, ms, event)
            case "RequestMigrated":
                text = f"{event.request} left {self._worker_name(event.worker)}: {event.reason}"
                self._note(ms, "migrated", text, ROUTING, seq, replica=number, request=event.request)
            case "LocalChanged":
                worker = self.worker(event.worker)
                what = ", ".join(event.reasons).replace("_", " ") or "well again"
                text = f"{_named(life)}: {_named(self.workers[worker])} is {what}"
                self._note(ms, "doubt", text, ROUTING, seq, worker, number)
            case _:
                pass  # the timeline does not show it

    def _turned_away(self, number: int, seq: int, ms: int, event: PartialEvent) -> None:
        """A refusal is noted; a client that hung up has a kind of its own."""
        kind, text = "rejected", f"{event.request} was refused with {event.status}: {event.reason}"
        if event.reason == CLIENT_GONE:
            kind, text = CLIENT_GONE, f"{event.request}'s client hung up while it waited"
        self._note(ms, kind, text, ROUTING, seq, replica=number, request=event.request)

    def _settings(self, number: int, seq: int, ms: int, event: PartialEvent) -> None:
        given, before = event.settings or {}, self._in_force.get(number)
        self.settings[number, event.revision] = self._in_force[number] = given
        if before == given:
            return  # it restates its settings
        changes = _changes(before or RoutingSettings().to_mapping(), given)
        text = f"{_named(self.replicas[number])} uses revision {event.revision}: {changes}"
        self._note(ms, "settings", text, ROUTING, seq, replica=number)

    def _ended(self, number: int, seq: int, ms: int, how: str, reason: str) -> None:
        life = self.replicas[number]
        life.to_ms, life.end = ms, how
        self._note(ms, f"replica_{how}", f"{_named(life)} {how}: {reason}", ROUTING, seq, replica=number)

    # -------------------------------------------------------------------------------------------------------------

    def _note(
        self,
        ms: int,
        kind: str,
        text: str,
        stream: str,
        seq: int,
        worker: int = -1,
        replica: int = -1,
        request: str = "",
    ) -> None:
        self._add_note(TimelineNote(ms, kind, text, f"{stream}:{seq}", worker, replica, request))

    def _add_note(self, note: TimelineNote) -> None:
        counted = self._noted[note.kind] = self._noted.get(note.kind, 0) + 1
        if counted <= NOTES_MAX:
            self.notes.append(note)
        else:
            self.notes_dropped[note.kind] = counted - NOTES_MAX

    def _worker_name(self, id: str) -> str:
        return _named(self.workers[self.worker(id)])

    def _replica_name(self, id: str) -> str:
        known = self._replica_numbers.get(id)
        return id if known is None else _named(self.replicas[known])


def _named(life: Lifetime) -> str:
    return life.name or life.id


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The differing settings in words."""
    names = sorted(before.keys() | after.keys())
    changed = [name for name in names if before.get(name) != after.get(name)]
    texts = [f"{name} {_value(before.get(name))} → {_value(after.get(name))}" for name in changed]
    return ", ".join(texts) or "the defaults"


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
