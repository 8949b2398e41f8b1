"""Fleet: the workers that the registry knows, a link to each, and what only this replica knows of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from actors.link import Link, WorkerGone
from actors.wire import Hello
from core.clock import Clock
from core.errors import PeerError
from core.ids import WorkerId
from core.models import ModelCard
from streams.registry import Change, Registry

FAILED_FOR_MS = 2000
"""A worker that failed a request is left out this long."""
STALE_AFTER_MS = 6000
"""A worker without a load report for this long is stale."""

_logger = logging.getLogger(__name__)


class Fleet:
    """Follows the registry. `on_change` is called when a worker comes, goes, or its link does."""

    def __init__(
        self, registry: Registry, clock: Clock, hello: Callable[[], Hello], on_change: Callable[[], None]
    ) -> None:
        self.links: dict[WorkerId, Link] = {}
        self.registered: dict[WorkerId, dict[str, Any]] = {}
        self.registry_healthy = False
        self.absent_since: dict[WorkerId, int] = {}
        """Workers whose registration vanished, and when."""
        self._cards: dict[str, ModelCard] = {}
        self._block_sizes: dict[str, int] = {}
        self._registry = registry
        self._clock = clock
        self._hello = hello
        self._on_change = on_change
        self._heard_ms: dict[WorkerId, int] = {}
        self._failed_ms: dict[WorkerId, int] = {}
        self._fetching: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        up = sum(link.up for link in self.links.values())
        return f"<Fleet {len(self.registered)} registered, {up} connected, models {sorted(self._cards)}>"

    async def start(self) -> None:
        """The registry's workers are known and being connected to; it goes on following."""
        self.registry_healthy = True
        await self._registry.watch("workers/", self._on_registered, self._on_health)

    async def close(self) -> None:
        """No connection is left."""
        for task in self._fetching:
            task.cancel()
        await asyncio.gather(*(link.close() for link in self.links.values()), *self._closing)

    def heard(self, worker: WorkerId) -> None:
        """A load report came."""
        self._heard_ms[worker] = self._clock.monotonic_ms()

    def failed(self, worker: WorkerId) -> None:
        """A request failed there."""
        self._failed_ms[worker] = self._clock.monotonic_ms()

    def forget(self, worker: WorkerId) -> None:
        """The log says that the worker is over."""
        for known in (self._heard_ms, self._failed_ms, self.absent_since):
            known.pop(worker, None)
        if worker not in self.registered:
            self._drop_link(worker)

    def connect(self, worker: WorkerId, address: str) -> Link:
        """The worker's link, which connects by itself."""
        link = self.links.get(worker)
        if link is None:
            link = self.links[worker] = Link(worker, address, self._hello, self._on_link)
            link.start()
        return link

    def local(self, alive: Iterable[WorkerId], suspected: frozenset[WorkerId]) -> dict[str, frozenset[WorkerId]]:
        """What a decision must know beside the log (`core.decision.LOCAL_REASONS`)."""
        workers, now = list(alive), self._clock.monotonic_ms()
        down = frozenset(w for w in workers if w not in self.links or not self.links[w].up)
        failed = frozenset(w for w in workers if now - self._failed_ms.get(w, -FAILED_FOR_MS) < FAILED_FOR_MS)
        stale = frozenset(w for w in workers if now - self._heard_ms.setdefault(w, now) >= STALE_AFTER_MS)
        cut_off = 2 * len(stale) > len(workers)
        return {
            "not_connected": down,
            "suspected": suspected,
            "failed": failed - down,
            "stale": frozenset() if cut_off else stale,
            "cut_off": stale if cut_off else frozenset(),
        }

    def cards(self) -> list[ModelCard]:
        """Every model that a worker was ever seen for, by name, with its connected workers counted."""
        return [self.card(name) for name in sorted(self._cards)]

    def card(self, model: str) -> ModelCard:
        """The model's card; KeyError if it was never seen."""
        card = self._cards[model]
        up = sum(link.up for w, link in self.links.items() if self.registered.get(w, {}).get("model") == model)
        return ModelCard(
            name=card.name,
            engine=card.engine,
            context_max=card.context_max,
            created_s=card.created_s,
            workers=up,
            files=card.files,
        )

    def block_size(self, model: str) -> int:
        """What the model's workers must have in common; the first one seen says it. KeyError as `card`."""
        return self._block_sizes[model]

    def _on_health(self, healthy: bool) -> None:
        if healthy != self.registry_healthy:
            _logger.warning("the registry is %s", "back" if healthy else "away: what is known goes on working")
        self.registry_healthy = healthy

    def _on_registered(self, change: Change) -> None:
        worker = WorkerId(change.key.rpartition("/")[2])
        if change.value is None:
            self.registered.pop(worker, None)
            self.absent_since[worker] = self._clock.monotonic_ms()
        else:
            details = orjson.loads(change.value)
            self.registered[worker] = details
            self.absent_since.pop(worker, None)
            self.connect(worker, details["address"])
        self._on_change()

    def _drop_link(self, worker: WorkerId) -> None:
        link = self.links.pop(worker, None)
        if link is not None:
            task = asyncio.create_task(link.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _on_link(self, link: Link) -> None:
        details = self.registered.get(link.worker)
        if link.up and details is not None and details["model"] not in self._cards:
            task = asyncio.create_task(self._learn(link, details))
            self._fetching.add(task)
            task.add_done_callback(self._fetching.discard)
        self._on_change()

    async def _learn(self, link: Link, details: dict[str, Any]) -> None:
        """The worker's tokenizer makes its model one that we can speak for."""
        try:
            files = await link.files()
        except (PeerError, WorkerGone, TimeoutError) as error:
            _logger.warning("worker %s did not give its tokenizer: %s", link.worker, error)
            return
        self._block_sizes[details["model"]] = details["block_size"]
        self._cards[details["model"]] = ModelCard(
            name=details["model"],
            engine=details["engine"],
            context_max=details["context_max"],
            created_s=self._clock.wall_ms() // 1000,
            workers=0,
            files=files,
        )
        self._on_change()
