"""Participants: the names of the workers and replicas that a recording has by id; the id stands for a name that no
message says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from core.codec import decode_message
from core.errors import CallerError, Corrupt
from core.events import WorkerJoined
from core.ids import ReplicaId, StreamName, WorkerId
from core.subjects import kv_stream, owner
from projections.folds.state import State
from replay.recording.request_history import RequestHistory
from streams.log import Record

JOINED = b"WorkerJoined"
"""Stands in every message that names a worker, and in few others."""


class Participants(msgspec.Struct):
    """Ids to names, of all lives that the recording tells of."""

    workers: dict[WorkerId, str] = msgspec.field(default_factory=dict)
    replicas: dict[ReplicaId, str] = msgspec.field(default_factory=dict)
    streams: dict[WorkerId, StreamName] = msgspec.field(default_factory=dict)
    """The kv stream that each worker writes to."""

    def worker(self, worker: str) -> str:
        """The worker's name; its id if nobody said it."""
        return self.workers.get(WorkerId(worker), worker)

    def replica(self, replica: str) -> str:
        """The replica's name; its id if nobody said it."""
        return self.replicas.get(ReplicaId(replica), replica)

    def life(self, worker: str) -> str:
        """Name and id: a worker has a new id at every start, and several of one name may be meant."""
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
        for replica, part in state.routing.replicas.items():
            if part.joined is not None:
                self.replicas.setdefault(replica, part.joined.name or replica)

    def note_workers(self, records: Iterable[Record]) -> None:
        """Those that speak in these messages of a kv stream, by the names under which they join. Some 2 us per
        message."""
        for record in records:
            speaker = WorkerId(owner(record.subject))
            if speaker not in self.streams:
                self.streams[speaker] = record.stream
                self.workers.setdefault(speaker, speaker)
            if JOINED in record.payload:
                try:
                    message = decode_message(record.payload)
                except Corrupt:
                    continue
                for event in message.events:
                    if isinstance(event, WorkerJoined):
                        self.workers[WorkerId(message.source)] = event.name or message.source
                        self.streams[WorkerId(message.source)] = record.stream

    def note_requests(self, requests: RequestHistory) -> None:
        """Those that the routing stream has, by their ids where no message says a name."""
        for replica in requests.replicas.names:
            self.replicas.setdefault(ReplicaId(replica), replica)
        for worker in requests.workers.names:
            self.workers.setdefault(WorkerId(worker), worker)


def _listed(names: Mapping[WorkerId, str] | Mapping[ReplicaId, str]) -> str:
    return ", ".join(sorted(set(names.values()))) or "none"
