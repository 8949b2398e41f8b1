"""WorkerAdapters: the adapters (LoRA) that one worker serves, and their changes while it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping

from actors.engines.engine_adapters import AdapterCopy, EngineAdapters
from actors.worker.adapter_slots import AdapterSlots
from core.clock import Clock
from core.errors import CallerError
from core.events import Adapter, AdapterChange, AdapterLoaded, AdapterUnloaded

UNLOAD_GRACE_S = 2.0
"""An adapter takes requests for so long after the log has its end: replicas read that a little late."""
NO_ADAPTERS = "this worker serves no adapters: start it with one, or with the engine argument enable_lora"

OnAdapterChange = Callable[[AdapterChange, tuple[Adapter, ...]], None]


class WorkerAdapters:
    """Those of the engine's start, and what changed since. At most one for each name takes new requests by the log."""

    def __init__(
        self,
        engine: EngineAdapters | None,
        clock: Clock,
        on_change: OnAdapterChange,
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        """The engine is up. `on_change` is called with each event and all adapters behind it."""
        self._engine = engine
        self._clock = clock
        self._on_change = on_change
        self._spawn = spawn
        self._lock = asyncio.Lock()
        served = [] if engine is None else engine.served()
        self._by_name = {copy.name: self._adapter(copy) for copy in served}
        self.slots: AdapterSlots | None = None
        """Of adapters that are loaded at the first request for them; None if there are none."""

    def __repr__(self) -> str:
        return f"<WorkerAdapters {', '.join(self._by_name)}>"

    def all(self) -> tuple[Adapter, ...]:
        """By name."""
        found = self._by_name | (self.slots.adapters if self.slots is not None else {})
        return tuple(found[name] for name in sorted(found))

    async def open_slots(self, slots: int, catalog: Mapping[str, str]) -> None:
        """The adapters in these folders, by name, are announced, and so many at a time are loaded. CallerError if one
        cannot be read."""
        opened = AdapterSlots(self._loader(), slots, self._clock, lambda event: self._on_change(event, self.all()))
        await opened.stage(catalog)
        for name in catalog:
            self._by_name.pop(name, None)  # a server's next start has those that were loaded at the last one
        self.slots = opened

    async def load(self, name: str, path: str) -> Adapter:
        """The adapter is served under that name, and the log has that; another one of the name is unloaded. Nothing
        changes if the files have the content that is served. Errors are those of `EngineAdapters.load`."""
        engine = self._loader()
        async with self._lock:
            copy = await engine.load(name, path)
            before = self._by_name.get(name)
            if before is not None and before.digest == copy.digest:
                return before
            loaded = self._by_name[name] = self._adapter(copy)
            event = AdapterLoaded(name=name, digest=loaded.digest, rank=loaded.rank, loaded_ms=loaded.loaded_ms)
            self._on_change(event, self.all())
        if before is not None:
            self._spawn(self._retire(engine, before))
        return loaded

    async def unload(self, name: str) -> Adapter:
        """The log has that the adapter is served no more. Requests for it end; it is gone UNLOAD_GRACE_S and its last
        request later. CallerError if the worker serves none of that name."""
        engine = self._loader()
        async with self._lock:
            before = self._by_name.pop(name, None)
            if before is None:
                raise CallerError(f"no adapter {name!r} is loaded")
            self._on_change(AdapterUnloaded(name=name, digest=before.digest), self.all())
        self._spawn(self._retire(engine, before))
        return before

    def _loader(self) -> EngineAdapters:
        if self._engine is None:
            raise CallerError(NO_ADAPTERS)
        return self._engine

    def _adapter(self, copy: AdapterCopy) -> Adapter:
        return Adapter(copy.name, copy.digest, copy.rank, self._clock.wall_ms())

    async def _retire(self, engine: EngineAdapters, adapter: Adapter) -> None:
        await asyncio.sleep(UNLOAD_GRACE_S)
        now = self._by_name.get(adapter.name)
        if now is None or now.id != adapter.id:  # else it was loaded again
            await engine.unload(adapter.id)
