"""PrefillPeers: the prefill workers that a decode worker may ask: registered, connected, and of its own kind."""

from __future__ import annotations

import logging
from typing import NamedTuple, Protocol

from actors.transport.frames import Introduce, ToPrefill
from core.ids import WorkerId
from core.kv_transfer import KvAddress

_logger = logging.getLogger(__name__)


class PrefillConnection(Protocol):
    """A prefill worker's connection to us."""

    def send(self, frame: ToPrefill) -> None:
        """The frame is on its way, unless the connection is gone."""


class Kind(NamedTuple):
    """The properties of an engine's blocks; only an engine with equal ones can use the blocks."""

    model: str
    block_size: int
    layout: str


class PrefillPeer(NamedTuple):
    """One that can be asked now."""

    worker: WorkerId
    connection: PrefillConnection
    address: KvAddress


class PrefillPeers:
    """A table of registrations and connections; an entry of the registry goes on counting while that is away."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._addresses: dict[WorkerId, KvAddress] = {}
        self._workers: dict[PrefillConnection, WorkerId] = {}
        """The worker behind each connection, the newest last: it has two while one side goes on under another id."""
        self._misfits: dict[WorkerId, str] = {}

    def __repr__(self) -> str:
        return f"<PrefillPeers {len(self._workers)} connected, {len(self._addresses)} registered>"

    def register(self, worker: WorkerId, address: KvAddress | None) -> None:
        """The registry has this address for the worker's blocks; None if the worker is registered no more."""
        if address is not None:
            self._addresses[worker] = address
        else:
            self._addresses.pop(worker, None)
            self._misfits.pop(worker, None)

    def introduced(self, connection: PrefillConnection, frame: Introduce) -> bool:
        """A prefill worker has introduced itself; False if its blocks are of no use here, which is logged once."""
        worker, theirs = WorkerId(frame.worker), Kind(frame.model, frame.block_size, frame.layout)
        if theirs == self.kind:
            self._workers[connection] = worker
            return True
        if theirs.model == self.kind.model and worker not in self._misfits:
            self._misfits[worker] = f"{theirs} there, {self.kind} here"
            _logger.error("prefill worker %s cannot work for us: %s", frame.name, self._misfits[worker])
        return False

    def on_disconnect(self, connection: PrefillConnection) -> WorkerId | None:
        """The connection broke; returns its worker."""
        return self._workers.pop(connection, None)

    def able(self) -> list[WorkerId]:
        """The workers that can be asked now, sorted. O(prefill workers)."""
        return sorted(self._addresses.keys() & self._workers.values())

    def get(self, worker: WorkerId) -> PrefillPeer | None:
        """The worker's connection and the address of its blocks; None without either."""
        connection = next((each for each, behind in reversed(self._workers.items()) if behind == worker), None)
        address = self._addresses.get(worker)
        return None if connection is None or address is None else PrefillPeer(worker, connection, address)

    def worker_of(self, connection: PrefillConnection) -> WorkerId | None:
        """The worker behind this connection; None before its introduction, or if its blocks are of no use here."""
        return self._workers.get(connection)
