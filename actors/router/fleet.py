"""Fleet: the registered workers, a client to each, and the facts about them that only this replica knows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from actors.membership.registration import Registration, registration_of
from actors.router.model_catalog import ModelCardSource, ModelCatalog
from actors.transport.handshake import LinkSecurity
from actors.transport.reconnecting_client import ReconnectingClient
from core.clock import Clock
from core.events.kv import PREFILL
from core.ids import WorkerId
from streams.registry import Change, Registry

FAILED_FOR_MS = 2000
"""A worker that failed a request is left out this long."""
STALE_AFTER_MS = 6000
"""A worker without a load report for this long is stale."""

_logger = logging.getLogger(__name__)


class _LocalReasons(NamedTuple):
    """Local reasons of workers, and until when they hold."""

    workers: Sequence[WorkerId]
    suspected: frozenset[WorkerId]
    changes: int
    until_ms: int
    found: dict[str, frozenset[WorkerId]]


class Fleet:
    """Follows the registry. `on_change` is called when a worker registers or leaves, and when its connection changes.

    A client stands for as long as its worker is registered, alive by the log, or still sends us tokens: then
    `actors.membership.failure_detector` drops it.
    """

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        link: LinkSecurity,
        replica: Callable[[], str],
        on_change: Callable[[], None],
        on_learned: Callable[[Registration, dict[str, bytes]], None] = lambda _registration, _files: None,
    ) -> None:
        """`replica` returns the present id of this replica. `on_learned` is that of the catalog."""
        self.clients: dict[WorkerId, ReconnectingClient] = {}
        self.registered: dict[WorkerId, Registration] = {}
        self.registry_healthy = False
        self.changes = 0
        """Counts changes: connections made, broken or dropped, and requests that failed."""
        self.catalog = ModelCatalog(clock, self._model_sources, on_change, on_learned)
        self._registry = registry
        self._clock = clock
        self._link = link
        self._replica = replica
        self._on_change = on_change
        self._reported_ms: dict[WorkerId, int] = {}
        self._failed_ms: dict[WorkerId, int] = {}
        self._local = _LocalReasons((), frozenset(), 0, 0, {})
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def __repr__(self) -> str:
        up = sum(client.up for client in self.clients.values())
        return f"<Fleet {len(self.registered)} registered, {up} connected, {self.catalog!r}>"

    async def start(self) -> None:
        """The registered workers are known and are being connected to; later changes are followed."""
        self.registry_healthy = True
        await self._registry.watch("workers/", self._on_registered, self._on_health)

    async def close(self) -> None:
        """No connection is left, and none will be made."""
        self._closed = True
        await self.catalog.close()
        await asyncio.gather(*(client.close() for client in self.clients.values()), *self._closing)

    def on_load_report(self, worker: WorkerId) -> None:
        """The worker is not stale: it reported its load."""
        self._reported_ms[worker] = self._clock.monotonic_ms()

    def on_request_failed(self, worker: WorkerId) -> None:
        """Decisions leave the worker out for FAILED_FOR_MS: a request failed there."""
        self._failed_ms[worker] = self._clock.monotonic_ms()
        self.changes += 1

    def connected(self, worker: WorkerId) -> bool:
        """True if a request can be sent to the worker now."""
        client = self.clients.get(worker)
        return client is not None and client.up

    def connect(self, worker: WorkerId, address: str) -> ReconnectingClient:
        """The worker's client, which connects by itself."""
        client = self.clients.get(worker)
        if client is None:
            client = self.clients[worker] = ReconnectingClient(
                worker, address, self._link, self._replica, self._on_connection, steps=True
            )
            client.start()
        return client

    def forget_all_but(self, alive: AbstractSet[WorkerId]) -> None:
        """Only the client is left of a worker that is neither registered nor alive by the log."""
        for kept in (self._reported_ms, self._failed_ms):
            for worker in kept.keys() - alive - self.registered.keys():
                del kept[worker]

    def drop(self, client: ReconnectingClient) -> None:
        """The client is given up; streams that are open over it end."""
        self.clients.pop(client.worker, None)
        self.changes += 1
        task = asyncio.create_task(client.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def local(self, workers: Sequence[WorkerId], suspected: frozenset[WorkerId]) -> dict[str, frozenset[WorkerId]]:
        """The workers under each local reason (`core.events.routing.LOCAL_REASONS`), which decisions read beside the
        log. The same object is returned for the same sequence while nothing changed; else O(workers)."""
        known, now = self._local, self._clock.monotonic_ms()
        if not (
            known.workers is workers
            and now < known.until_ms
            and known.changes == self.changes
            and known.suspected == suspected
        ):
            known = self._local = self._local_reasons(workers, suspected, now)
        return known.found

    def _local_reasons(self, workers: Sequence[WorkerId], suspected: frozenset[WorkerId], now: int) -> _LocalReasons:
        clients, reported_ms, failed_ms = self.clients, self._reported_ms, self._failed_ms
        down = frozenset(w for w in workers if w not in clients or not clients[w].up)
        stale_ms = {w: reported_ms.setdefault(w, now) + STALE_AFTER_MS for w in workers}
        stale = frozenset(w for w, due_ms in stale_ms.items() if now >= due_ms)
        failed = frozenset(w for w in failed_ms.keys() & workers if now - failed_ms[w] < FAILED_FOR_MS)
        cut_off = 2 * len(stale) > len(workers)
        found = {
            "not_connected": down,
            "suspected": suspected,
            "failed": failed - down,
            "stale": frozenset() if cut_off else stale,
            "cut_off": stale if cut_off else frozenset(),
        }
        until_ms = now if stale or failed else min(stale_ms.values(), default=now)
        return _LocalReasons(workers, suspected, self.changes, until_ms, found)

    def _model_sources(self, model: str) -> Iterator[ModelCardSource]:
        for worker, registration in self.registered.items():
            if registration.model == model and registration.role != PREFILL:
                yield ModelCardSource(self.clients[worker], registration)

    def _on_health(self, healthy: bool) -> None:
        if healthy != self.registry_healthy:
            _logger.warning("the registry is %s", "back" if healthy else "away: what is known goes on working")
        self.registry_healthy = healthy

    def _on_registered(self, change: Change) -> None:
        if self._closed:
            return
        worker = WorkerId(change.key.rpartition("/")[2])
        before, now = self.registered.pop(worker, None), registration_of(change)
        if now is not None:
            self.registered[worker] = now
            self.connect(worker, now.address)
        for model in {registration.model for registration in (before, now) if registration is not None}:
            self.catalog.consider(model)
        self._on_change()

    def _on_connection(self, client: ReconnectingClient) -> None:
        self.changes += 1
        if self._closed:
            return
        registration = self.registered.get(client.worker)
        if client.up and registration is not None:
            self.catalog.consider(registration.model)
        self._on_change()
