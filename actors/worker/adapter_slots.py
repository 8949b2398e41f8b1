"""AdapterSlots: adapters (LoRA) that a worker loads at the first request for them, so many at a time.

1. The worker has copies of all adapters of its group, and announces them: those that are not loaded as cold.
2. The first request for a cold one loads it, and waits for that. Requests that come meanwhile wait, too.
3. With all slots taken, the adapter that was used longest ago goes, of those without requests. While each has some, the
   request waits: LOAD_WAIT_S at most.
4. The log has the end of one before its engine forgets it, and the load of the other when it serves.
5. A request whose adapter cannot be loaded is declined, and goes to another worker. An adapter that the engine refuses
   is announced no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec
from msgspec import UNSET

from actors.engines.engine_adapters import EngineAdapters
from core.clock import Clock
from core.errors import CallerError, Declined, PeerError
from core.events import Adapter, AdapterChange, AdapterEvicted, AdapterLoaded, AdapterUnloaded
from core.events.kv import ADAPTER_SEPARATOR

LOAD_WAIT_S = 30.0
"""Bound on a request's wait for others that load, and on its wait for a slot."""

_logger = logging.getLogger(__name__)


class AdapterSlots:
    """Those of one worker, whose engine is up."""

    def __init__(
        self, engine: EngineAdapters, slots: int, clock: Clock, on_change: Callable[[AdapterChange], None]
    ) -> None:
        """`on_change` is called with each event once `adapters` shows it."""
        assert slots > 0
        self.adapters: dict[str, Adapter] = {}
        """All that are announced, by name."""
        self._engine = engine
        self._slots = slots
        self._clock = clock
        self._on_change = on_change
        self._requests: OrderedDict[str, int] = OrderedDict()
        """The loaded ones by id, with the number of requests that have each; the least recently used first."""
        self._lock = asyncio.Lock()
        """Held while one is loaded."""
        self._released = asyncio.Event()
        """A request has ended since it was cleared."""

    def __repr__(self) -> str:
        return f"<AdapterSlots {len(self._requests)} of {self._slots}, {len(self.adapters)} adapters>"

    @property
    def loaded(self) -> list[str]:
        """Ids of those that are loaded, the least recently used first."""
        return [*self._requests]

    async def stage(self, catalog: Mapping[str, str]) -> None:
        """Copies of the adapters in these folders, by name, are there, and none is loaded. CallerError if one cannot be
        read."""
        for name, path in sorted(catalog.items()):
            copy = await self._engine.stage(name, path)
            self.adapters[name] = Adapter(name, copy.digest, copy.rank, self._clock.wall_ms(), cold=True)

    def announces(self, adapter: str) -> bool:
        """True if the adapter of this id is loaded here at a request for it."""
        return self._announced(adapter) is not None

    @asynccontextmanager
    async def using(self, adapter: str) -> AsyncIterator[None]:
        """The adapter of this id is loaded while the block runs. Declined if it cannot be."""
        if adapter not in self._requests:
            await self._load(adapter)
        self._requests.move_to_end(adapter)
        self._requests[adapter] += 1
        try:
            yield
        finally:
            self._requests[adapter] -= 1
            self._released.set()

    async def _load(self, adapter: str) -> None:
        try:
            async with asyncio.timeout(LOAD_WAIT_S):
                await self._lock.acquire()
        except TimeoutError as error:
            raise Declined(f"other adapters were loaded for {LOAD_WAIT_S:g} s") from error
        try:
            if adapter in self._requests:
                return  # another request has loaded it meanwhile
            found = self._announced(adapter)
            if found is None:
                raise Declined(f"the adapter {adapter} is not served here any more")
            await self._make_room()
            await self._attach(found)
        finally:
            self._lock.release()

    def _announced(self, adapter: str) -> Adapter | None:
        found = self.adapters.get(adapter.partition(ADAPTER_SEPARATOR)[0])
        return found if found is not None and found.id == adapter else None

    async def _make_room(self) -> None:
        try:
            async with asyncio.timeout(LOAD_WAIT_S):
                while len(self._requests) >= self._slots:
                    unused = next((each for each, requests in self._requests.items() if not requests), None)
                    if unused is None:
                        self._released.clear()
                        await self._released.wait()
                    else:
                        self._note_eviction(unused)
                        await self._engine.detach(unused)
        except TimeoutError as error:
            raise Declined(f"no adapter was without requests for {LOAD_WAIT_S:g} s") from error

    def _note_eviction(self, adapter: str) -> None:
        del self._requests[adapter]
        gone = self._announced(adapter)
        assert gone is not None  # it was loaded
        self.adapters[gone.name] = msgspec.structs.replace(gone, cold=True)
        self._on_change(AdapterEvicted(name=gone.name, digest=gone.digest))

    async def _attach(self, adapter: Adapter) -> None:
        try:
            await self._engine.attach(adapter.id)
        except CallerError as error:
            _logger.error("the adapter %s cannot be loaded: %s", adapter.id, error)  # noqa: TRY400  # says it all
            del self.adapters[adapter.name]
            self._on_change(AdapterUnloaded(name=adapter.name, digest=adapter.digest))
            raise Declined(f"the adapter {adapter.id} cannot be loaded: {error}") from error
        except PeerError as error:
            raise Declined(f"the adapter {adapter.id} cannot be loaded now: {error}") from error
        self.adapters[adapter.name] = msgspec.structs.replace(adapter, cold=UNSET)
        self._requests[adapter.id] = 0
        self._on_change(
            AdapterLoaded(name=adapter.name, digest=adapter.digest, rank=adapter.rank, loaded_ms=adapter.loaded_ms)
        )
