"""Participants and ReplicaHistory: the names of the workers and replicas of a recording, and each replica's life.

A participant without a name in any message goes by its id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from core.codec import decode_message
from core.errors import CallerError, Corrupt
from core.events import PoolJoined, WorkerJoined
from core.ids import ReplicaId, StreamName, WorkerId
from core.settings import RoutingSettings
from core.subjects import kv_stream, owner
from projections.folds.routing_fold import ReplicaPart
from projections.folds.state import State
from replay.recording.messages import PartialEvent
from replay.recording.request_history import NEVER, OtherEvent, RequestHistory
from streams.archive.archive_format import Row

JOINED = b"Joined"
"""Stands in every message that names a worker, and in few others."""


class Participants(msgspec.Struct):
    """Ids to names, of all workers and replicas in the recording."""

    workers: dict[WorkerId, str] = msgspec.field(default_factory=dict)
    replicas: dict[ReplicaId, str] = msgspec.field(default_factory=dict)
    streams: dict[WorkerId, StreamName] = msgspec.field(default_factory=dict)
    """The kv stream that each worker writes to."""
    assumed: set[WorkerId] = msgspec.field(default_factory=set)
    """Workers whose cache events are assumed from the prompts that were sent to them."""

    def worker(self, worker: str) -> str:
        """The worker's name; its id if no message has it."""
        return self.workers.get(WorkerId(worker), worker)

    def replica(self, replica: str) -> str:
        """The replica's name; its id if no message has it."""
        return self.replicas.get(ReplicaId(replica), replica)

    def life(self, worker: str) -> str:
        """Name and id: a worker has a new id at every start, so several may have one name."""
        name = self.worker(worker)
        return worker if name == worker else f"{name} ({worker})"

    def workers_called(self, name: str) -> set[WorkerId]:
        """The lives of the worker of that name or id. CallerError if there is none."""
        found = {worker for worker, called in self.workers.items() if name in {worker, called}}
        if not found:
            raise CallerError(f"no worker {name!r} in this log; there are {_listed(self.workers)}")
        return found

    def replicas_called(self, name: str) -> set[ReplicaId]:
        """The lives of the replica of that name or id. CallerError if there is none."""
        found = {replica for replica, called in self.replicas.items() if name in {replica, called}}
        if not found:
            raise CallerError(f"no replica {name!r} in this log; there are {_listed(self.replicas)}")
        return found

    def note_state(self, state: State) -> None:
        """Those that were there before the recording begins."""
        for member in state.alive():
            if member.joined is not None:
                self.workers.setdefault(member.worker, member.joined.name or member.worker)
                self.streams.setdefault(member.worker, kv_stream(member.joined.partition))
                if member.joined.assumed is True:
                    self.assumed.add(member.worker)
        for replica, part in state.routing.replicas.items():
            if part.joined is not None:
                self.replicas.setdefault(replica, part.joined.name or replica)

    def note_workers(self, stream: StreamName, rows: Iterable[Row]) -> None:
        """Those that speak in these messages of a kv stream, by the names under which they join. Some 2 us per
        message."""
        for row in rows:
            speaker = WorkerId(owner(row.owner))
            if speaker not in self.streams:
                self.streams[speaker] = stream
                self.workers.setdefault(speaker, speaker)
            if JOINED in row.payload:
                try:
                    message = decode_message(row.payload)
                except Corrupt:
                    continue
                for event in message.events:
                    if isinstance(event, PoolJoined):
                        self.workers[WorkerId(message.source)] = f"the pool of {event.name}"
                    if isinstance(event, WorkerJoined):
                        self.workers[WorkerId(message.source)] = event.name or message.source
                        self.streams[WorkerId(message.source)] = stream
                        if event.assumed is True:
                            self.assumed.add(WorkerId(message.source))

    def note_requests(self, requests: RequestHistory) -> None:
        """Those that the routing stream has, by their ids where no message says a name."""
        for replica in requests.replicas.names:
            self.replicas.setdefault(ReplicaId(replica), replica)
        for worker in requests.workers.names:
            self.workers.setdefault(WorkerId(worker), worker)


def _listed(names: Mapping[WorkerId, str] | Mapping[ReplicaId, str]) -> str:
    return ", ".join(sorted(set(names.values()))) or "none"


class ReplicaHistory:
    """The start and the end of each replica, its settings, and its local knowledge of workers; made once of a whole
    recording."""

    def __init__(
        self, events: Iterable[OtherEvent], before: Mapping[ReplicaId, ReplicaPart], *, from_start: bool
    ) -> None:
        """`before` are the replicas' parts before the first event, as far as they are known; `from_start`: nothing of
        the stream lies before it."""
        self.names: dict[ReplicaId, str] = {}
        """Names of the replicas that have joined."""
        self.versions: dict[ReplicaId, str] = {}
        """Versions of the programs of the replicas that have joined."""
        self.joined: dict[str, int] = {}
        """By replica, the sequence of its first `ReplicaJoined`."""
        self.ended: dict[str, int] = {}
        """By replica, the sequence of its end."""
        self._settings: dict[tuple[str, int], list[tuple[int, dict[str, Any]]]] = {}
        self._local: dict[str, list[tuple[int, PartialEvent]]] = {}
        self._from_start = from_start
        for replica, part in before.items():
            if part.joined is not None:
                self.versions[replica] = part.joined.version
            if part.settings or part.joined is not None:  # a replica that joined and set nothing goes by the defaults
                self._settings[replica, part.settings_revision] = [(0, part.settings)]
            known = [PartialEvent("LocalChanged", worker=worker, reasons=why) for worker, why in part.local.items()]
            self._local[replica] = [(0, event) for event in known]
        for each in events:
            self._note(each.seq, each.replica, each.event)

    def __repr__(self) -> str:
        return f"<ReplicaHistory of {len(self.names)} replicas>"

    def settings(self, replica: str, revision: int, seq: int) -> RoutingSettings | None:
        """The replica's settings of that revision at that message; None if the log does not have them, or in a form
        that this program cannot read."""
        known = [settings for at, settings in self._settings.get((replica, revision), []) if at <= seq]
        if not known:  # a replica without a settings event goes by the defaults, if all its messages are here
            is_whole = self._from_start or self.joined.get(replica, seq + 1) <= seq
            return RoutingSettings() if revision == 0 and is_whole else None
        try:
            return RoutingSettings.parse(known[-1])
        except CallerError:
            return None

    def revision(self, revision: int) -> dict[str, Any] | None:
        """The settings of that revision by their last event; None if there is none. In a whole log without them
        revision 0 is the defaults."""
        known = [each for (_, number), stored in self._settings.items() if number == revision for each in stored]
        if not known:
            return {} if revision == 0 and self._from_start else None
        return max(known, key=lambda each: each[0])[1]

    @property
    def revisions(self) -> set[int]:
        """Those of which the settings are known."""
        return {number for _, number in self._settings} | ({0} if self._from_start else set())

    def local(self, replica: str, seq: int) -> dict[str, tuple[str, ...]]:
        """By worker, the replica's local knowledge before that message."""
        found: dict[str, tuple[str, ...]] = {}
        for at, event in self._local.get(replica, []):
            if at > seq:
                break
            if event.type == "ReplicaRestated":
                found.clear()
            elif event.reasons:
                found[event.worker] = event.reasons
            else:
                found.pop(event.worker, None)
        return found

    def at_once(self, first_seqs: Mapping[str, int], replicas: Collection[str]) -> int:
        """The most names of these that were there at one time, each from its first message on; O(n log n).

        A frontend that restarts has a new id and mostly the same name, and the new one may come before the old one
        ends. Pods of one deployment have new names, and follow each other. So replicas count by name while one of that
        name is there.
        """
        edges = []
        for replica in replicas:
            name = self.names.get(ReplicaId(replica), replica)
            edges += [(first_seqs[replica], 1, name), (self.ended.get(replica, NEVER), -1, name)]
        there: Counter[str] = Counter()
        most = 0
        for _, change, name in sorted(edges):  # the end of one, before the start of another
            there[name] += change
            if not there[name]:
                del there[name]
            most = max(most, len(there))
        return most

    def _note(self, seq: int, replica: str, event: PartialEvent) -> None:
        match event.type:
            case "SettingsChanged":
                self._settings.setdefault((replica, event.revision), []).append((seq, event.settings or {}))
            case "LocalChanged" | "ReplicaRestated":
                self._local.setdefault(replica, []).append((seq, event))
            case "ReplicaJoined":
                self.joined.setdefault(replica, seq)
                self.names[ReplicaId(replica)] = event.name or replica
                self.versions[ReplicaId(replica)] = event.version
            case "ReplicaLeft" | "ReplicaLost":
                self.ended.setdefault(replica, seq)
            case _:
                pass  # no event of the replica's life
