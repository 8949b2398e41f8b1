"""AdapterPlacement: a worker's share of its group's adapters (LoRA), by rendezvous hashing and without a leader.

1. Each worker registers the names of the adapters that it can serve (`adapter_catalog`), and of those that it serves
   (`adapters_placed`). The workers of a model that can serve a name share it.
2. Of these, the `replicas` with the lowest hashes over adapter and worker hold the adapter. So a worker that joins or
   leaves moves only the adapters that it holds, or held. Names are hashed: a worker that restarts gets its own back,
   and workers agree before one of them has read the files.
3. A worker loads each adapter that it is to hold. It unloads one that others are to hold once all of these serve it.
4. While the registry is away, the last known workers count.

`AdapterLoaded` and `AdapterUnloaded` tell routers the result, as of an operator's changes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple

from actors.membership.registration import Registration, registration_of
from actors.worker.worker_adapters import WorkerAdapters
from core.errors import ContrailError
from streams.registry import Change, Registry

SETTLE_S = 1.0
"""Between a change of the registry and the worker's own changes: workers that come together are seen together."""
RETRY_S = 30.0
"""Between two tries to load an adapter that could not be loaded, unless the registry changes before."""
PLACED = "the worker's group places this adapter: change it in the deployment's file"
"""The answer to an operator who changes one by a route."""

_logger = logging.getLogger(__name__)


class Share(NamedTuple):
    """The changes that a worker has to make, adapters by name."""

    load: tuple[str, ...]
    unload: tuple[str, ...]


def holders(adapter: str, workers: Collection[str], replicas: int) -> list[str]:
    """The names of the workers that are to hold the adapter, at most `replicas` of these. O(workers log workers)."""
    return sorted(workers, key=lambda worker: (_score(adapter, worker), worker))[:replicas]


def share_of(own: str, workers: Mapping[str, Registration], serves: Collection[str], replicas: int) -> Share:
    """The changes that the worker of that name has to make, by the registrations of its model's workers, of which one
    is its own, and the names of the adapters that it `serves`."""
    load, unload = [], []
    for adapter in sorted(workers[own].adapter_catalog):
        able = [worker for worker, each in workers.items() if adapter in each.adapter_catalog]
        chosen = holders(adapter, able, replicas)
        if own in chosen:
            if adapter not in serves:
                load.append(adapter)
        elif adapter in serves and all(adapter in workers[each].adapters_placed for each in chosen):
            unload.append(adapter)
    return Share(tuple(load), tuple(unload))


class AdapterPlacement:
    """See the module's text."""

    def __init__(
        self,
        name: str,
        model: str,
        catalog: Mapping[str, str],
        replicas: int,
        adapters: WorkerAdapters,
        register: Callable[[], Awaitable[None]],
    ) -> None:
        """`catalog` maps names of adapters to their folders on this machine. `register` puts `facts` into the
        registry."""
        assert replicas > 0
        self.catalog = catalog
        self._name = name
        self._model = model
        self._replicas = replicas
        self._adapters = adapters
        self._register = register
        self._registered: dict[str, tuple[int, Registration]] = {}
        """Workers of the model with their revisions, by key."""
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<AdapterPlacement of {self._name}: {', '.join(self._served())} of {len(self.catalog)}>"

    def facts(self) -> dict[str, object]:
        """The worker's part of its registration."""
        return {"adapter_catalog": sorted(self.catalog), "adapters_placed": self._served()}

    async def follow(self, registry: Registry) -> None:
        """Workers are known from now on, as soon as the registry is there."""
        await registry.watch("workers/", self._on_registered)

    async def run(self) -> None:
        """The worker's share is kept. Does not return."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(SETTLE_S)
            self._changed.clear()
            if not await self._settle():
                asyncio.get_running_loop().call_later(RETRY_S, self._changed.set)

    async def _settle(self) -> bool:
        """False if a change failed, which is logged."""
        workers = self._workers()
        if self._name not in workers:
            return True  # its own registration comes by the watch, too
        share = share_of(self._name, workers, self._served(), self._replicas)
        done = True
        for adapter in share.load:
            try:
                await self._adapters.load(adapter, self.catalog[adapter])
            except ContrailError as error:
                done = False
                _logger.error("the adapter %s is to be held here and cannot be loaded: %s", adapter, error)  # noqa: TRY400  # says it all
        for adapter in share.unload:
            await self._adapters.unload(adapter)
        if share.load or share.unload:
            await self._register()
        return done

    def _served(self) -> list[str]:
        return [each.name for each in self._adapters.all() if each.name in self.catalog]

    def _workers(self) -> dict[str, Registration]:
        """The newest registration of each name: a worker that was killed leaves one until its lease has run out."""
        found = sorted(self._registered.values(), key=lambda each: each[0])
        return {registration.name: registration for _, registration in found}

    def _on_registered(self, change: Change) -> None:
        registration = registration_of(change)
        if registration is not None and registration.model == self._model and registration.adapter_catalog:
            self._registered[change.key] = change.revision, registration
        elif self._registered.pop(change.key, None) is None:
            return
        self._changed.set()


def _score(adapter: str, worker: str) -> bytes:
    return hashlib.blake2b(f"{adapter}\0{worker}".encode(), digest_size=8).digest()
