"""AdapterChanges: adapters (LoRA) loaded to workers of this replica's fleet, and unloaded, while they serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from actors.router.adapter_catalog import AdapterCatalog
from actors.router.fleet import Fleet
from actors.transport.frames import AdapterChanged, LoadAdapter, UnloadAdapter
from actors.transport.reconnecting_client import ReconnectingClient
from core.errors import CallerError, PeerError
from core.events.kv import PREFILL
from core.models import NoWorkers
from core.served_names import listed

SEEN_MAX_S = 2.0
"""Bound on the wait for this replica's fold to have a change that workers made."""
SEEN_POLL_S = 0.01


class AdapterChanges:
    """Of one replica. Workers of earlier versions take none."""

    def __init__(self, fleet: Fleet, catalog: AdapterCatalog, worker_name: Callable[[str], str]) -> None:
        """`worker_name` returns the name of the worker of an id."""
        self._fleet = fleet
        self._catalog = catalog
        self._worker_name = worker_name

    def __repr__(self) -> str:
        return f"<AdapterChanges over {self._fleet!r}>"

    async def load(self, model: str, name: str, path: str, workers: Collection[str]) -> dict[str, str]:
        """These workers of the model, or all if none is named, serve the adapter that they find at the path; by their
        names, its id on each. This replica's fold has it by then, or SEEN_MAX_S have passed.

        CallerError if a name is unknown or taken, or if a worker refuses; those that took it keep it. NoWorkers if a
        worker is not connected.
        """
        if self._fleet.catalog.model_of(name) in self._fleet.catalog:
            raise CallerError(f"a model is called {name!r}: choose another name for the adapter")
        changed = await self._ask(model, LoadAdapter(name=name, path=path), workers)
        await self._seen(name, {*changed.values()})
        return changed

    async def unload(self, model: str, name: str, workers: Collection[str]) -> dict[str, str]:
        """These workers serve the adapter no more, or all that serve it if none is named. Else as `load`."""
        if not workers:
            found = self._catalog.find(name)
            workers = [self._worker_name(each) for each in found.holders] if found is not None else []
            if not workers:
                raise CallerError(f"no worker of model {model!r} serves an adapter {name!r}")
        return await self._ask(model, UnloadAdapter(name=name), workers)

    async def _ask(self, model: str, frame: LoadAdapter | UnloadAdapter, workers: Collection[str]) -> dict[str, str]:
        clients = self._clients(model, workers)
        answers = await asyncio.gather(
            *(client.change_adapter(frame) for client in clients.values()), return_exceptions=True
        )
        changed, faults = dict[str, str](), list[str]()
        for name, answer in zip(clients, answers, strict=True):
            if isinstance(answer, AdapterChanged) and not answer.fault:
                changed[name] = answer.adapter
            elif isinstance(answer, AdapterChanged):
                faults.append(f"{name}: {answer.fault}")
            elif isinstance(answer, PeerError | TimeoutError):
                faults.append(f"{name}: {answer or 'no answer in time'}")
            else:
                raise answer
        if faults:
            done = f"; done by {', '.join(changed)}" if changed else ""
            raise CallerError(f"{'; '.join(faults)}{done}")
        return changed

    def _clients(self, model: str, workers: Collection[str]) -> dict[str, ReconnectingClient]:
        there: dict[str, ReconnectingClient] = {}
        for worker, each in self._fleet.registered.items():
            name, client = self._worker_name(worker), self._fleet.clients[worker]
            if each.model == model and each.role != PREFILL and (name not in there or client.up):
                there[name] = client  # of a worker that was started anew, the dead one may still be registered
        if unknown := sorted(set(workers) - there.keys()):
            raise CallerError(f"model {model!r} has no worker {unknown[0]!r}; there are: {listed(sorted(there))}")
        found = {}
        for name, client in sorted(there.items()):
            if workers and name not in workers:
                continue
            if not client.up:
                raise NoWorkers(f"worker {name} is not connected")
            found[name] = client
        if not found:
            raise NoWorkers(f"model {model!r} has no worker now")
        return found

    async def _seen(self, name: str, adapters: Collection[str]) -> None:
        for _ in range(round(SEEN_MAX_S / SEEN_POLL_S)):
            found = self._catalog.find(name)
            if found is not None and found.id in adapters:
                return
            await asyncio.sleep(SEEN_POLL_S)
