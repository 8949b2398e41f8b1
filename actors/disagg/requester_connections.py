"""RequesterConnections: a prefill worker's connections to the decode workers of its model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from actors.membership.registration import registration_of
from actors.transport.frames import FromPrefill, Introduce, ToPrefill
from actors.transport.handshake import LinkSecurity
from actors.transport.reconnecting_client import ReconnectingClient
from core.events.kv import PREFILL
from core.ids import WorkerId
from streams.registry import Change, Registry

DEPARTED_KEPT = 4096
"""Requesters remembered as gone: their jobs need not be computed."""

_logger = logging.getLogger(__name__)


class RequesterConnections:
    """Follows the registry. `on_frame` is called with each of their frames, `on_disconnect` for each connection that
    broke."""

    def __init__(
        self,
        model: str,
        link: LinkSecurity,
        introduce: Callable[[], Introduce],
        *,
        on_frame: Callable[[WorkerId, ToPrefill], None],
        on_disconnect: Callable[[WorkerId], None],
    ) -> None:
        self.clients: dict[WorkerId, ReconnectingClient] = {}
        self._model = model
        self._link = link
        self._introduce = introduce
        self._on_frame = on_frame
        self._on_disconnect = on_disconnect
        self._departed: dict[WorkerId, None] = {}
        """Those that were registered, and are neither that nor connected any more; the last of them."""
        self._registered: set[WorkerId] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def __repr__(self) -> str:
        up = sum(client.up for client in self.clients.values())
        return f"<RequesterConnections {up} of {len(self.clients)} connected>"

    async def follow(self, registry: Registry) -> None:
        """The registry's decode workers are being connected to, also those that register later."""
        await registry.watch("workers/", self._on_registered)

    async def close(self) -> None:
        """No connection is left, and none will be made."""
        self._closed = True
        await asyncio.gather(*(client.close() for client in self.clients.values()), *self._closing)

    def introduce_again(self) -> None:
        """This worker has another id than before: all requesters hear of it."""
        for client in self.clients.values():
            self._introduce_to(client)

    def connected(self, worker: WorkerId) -> bool:
        """True if frames reach the worker now."""
        return worker in self.clients and self.clients[worker].up

    def unreachable(self, worker: WorkerId) -> bool:
        """True if connecting to the worker has failed since it was last connected."""
        return worker in self.clients and not self.clients[worker].up and self.clients[worker].failures > 0

    def has_departed(self, worker: WorkerId) -> bool:
        """True if the worker was registered, and is neither registered nor connected any more."""
        return worker in self._departed

    def send(self, worker: WorkerId, frame: FromPrefill) -> None:
        """The frame is on its way, unless the connection is gone."""
        if worker in self.clients:
            self.clients[worker].send(frame)

    def _on_registered(self, change: Change) -> None:
        if self._closed:
            return
        worker = WorkerId(change.key.rpartition("/")[2])
        registration = registration_of(change)
        self._registered.discard(worker)
        if registration is not None and registration.role != PREFILL and registration.model == self._model:
            self._registered.add(worker)
            self._departed.pop(worker, None)
            if registration.kv is not None and worker not in self.clients:
                self._connect(worker, registration.address)
        self._drop_if_over(worker)

    def _connect(self, worker: WorkerId, address: str) -> None:
        client = self.clients[worker] = ReconnectingClient(
            worker,
            address,
            self._link,
            lambda: self._introduce().worker,
            self._on_client_change,
            lambda frame: self._on_frame(worker, frame),
        )
        client.start()

    def _on_client_change(self, client: ReconnectingClient) -> None:
        if client.up:
            self._introduce_to(client)
        else:
            self._on_disconnect(client.worker)
            self._drop_if_over(client.worker)

    def _introduce_to(self, client: ReconnectingClient) -> None:
        frame = self._introduce()
        client.send(msgspec.structs.replace(frame, proof=client.proof_of(frame.worker)))

    def _drop_if_over(self, worker: WorkerId) -> None:
        """A worker that is registered no more is kept for as long as it speaks to us: the registry may be wrong."""
        if worker in self.clients and worker not in self._registered and not self.clients[worker].up:
            self._departed[worker] = None
            if len(self._departed) > DEPARTED_KEPT:
                del self._departed[next(iter(self._departed))]
            self._drop(worker)

    def _drop(self, worker: WorkerId) -> None:
        task = asyncio.create_task(self.clients.pop(worker).close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
